// Package exithook tells of processes that have begun to end. A process handle
// (pidfd) tells only when the kernel has taken apart what the process held, which
// for packet sockets takes some tens of milliseconds; by then the program has long
// stopped working.
package exithook

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

const (
	most     = 4096    // processes watched at a time
	ringSize = 1 << 14 // bytes
)

// Watcher watches processes. A nil Watcher never tells of any.
type Watcher struct {
	watched *ebpf.Map
	ring    *ebpf.Map
	prog    *ebpf.Program
	link    link.Link
	reader  *ringbuf.Reader
	done    chan struct{}

	mu     sync.Mutex
	closed bool
	chans  map[uint32]chan struct{}
}

// New begins to watch the machine's processes. It needs the rights to load eBPF
// programs, and sees the process numbers of the machine's first PID namespace.
func New() (_ *Watcher, err error) {
	w := &Watcher{chans: map[uint32]chan struct{}{}, done: make(chan struct{})}
	defer func() {
		if err != nil {
			w.release()
		}
	}()
	if w.watched, err = ebpf.NewMap(&ebpf.MapSpec{Name: "ending_pids", Type: ebpf.Hash, KeySize: 4, ValueSize: 4,
		MaxEntries: most}); err != nil {
		return nil, fmt.Errorf("watch for processes that end: %w", err)
	}
	if w.ring, err = ebpf.NewMap(&ebpf.MapSpec{Name: "ending_ring", Type: ebpf.RingBuf, MaxEntries: ringSize}); err != nil {
		return nil, fmt.Errorf("watch for processes that end: %w", err)
	}
	if w.prog, err = ebpf.NewProgram(w.program()); err != nil {
		return nil, fmt.Errorf("watch for processes that end: %w", err)
	}
	if w.reader, err = ringbuf.NewReader(w.ring); err != nil {
		return nil, fmt.Errorf("watch for processes that end: %w", err)
	}
	if w.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exit", Program: w.prog}); err != nil {
		return nil, fmt.Errorf("watch for processes that end: %w", err)
	}
	go w.run()
	return w, nil
}

// program sends the number of each watched process whose first thread ends.
func (w *Watcher) program() *ebpf.ProgramSpec {
	return &ebpf.ProgramSpec{Name: "ending", Type: ebpf.RawTracepoint, License: "Dual BSD/GPL", Instructions: asm.Instructions{
		asm.FnGetCurrentPidTgid.Call(),
		asm.Mov.Reg(asm.R6, asm.R0),
		asm.RSh.Imm(asm.R6, 32),
		asm.Mov.Reg32(asm.R7, asm.R0),
		asm.JNE.Reg(asm.R6, asm.R7, "out"),
		asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word),
		asm.LoadMapPtr(asm.R1, w.watched.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMapPtr(asm.R1, w.ring.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.Mov.Imm(asm.R3, 4),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}}
}

// Watch gives a channel that is closed when the process begins to end, and a
// function that ends the watch. Where that cannot be told (a nil Watcher, another
// PID namespace) the channel stays open.
func (w *Watcher) Watch(pid int) (<-chan struct{}, func()) {
	if w == nil || pid <= 0 {
		return nil, func() {}
	}
	key, c := uint32(pid), make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.watched.Put(key, uint32(1)) != nil {
		return nil, func() {}
	}
	w.chans[key] = c
	return c, func() { w.forget(key, c) }
}

// forget ends a watch; it reports whether there was one.
func (w *Watcher) forget(key uint32, c chan struct{}) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.chans[key] != c {
		return false
	}
	delete(w.chans, key)
	_ = w.watched.Delete(key)
	return true
}

func (w *Watcher) run() {
	defer close(w.done)
	var tells sync.WaitGroup
	defer tells.Wait()
	for {
		r, err := w.reader.Read()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || len(r.RawSample) < 4 {
			continue
		}
		key := binary.NativeEndian.Uint32(r.RawSample)
		w.mu.Lock()
		c := w.chans[key]
		w.mu.Unlock()
		if c != nil {
			tells.Go(func() { w.tell(key, c) })
		}
	}
}

// patience is how long other threads of an ending process may take to begin to
// end too. A first thread may end alone.
const patience = 50 * time.Millisecond

// tell closes c if all of the process ends.
func (w *Watcher) tell(key uint32, c chan struct{}) {
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		ends, threads := state(int(key))
		if !ends || time.Since(begin) > patience {
			return // the number is another process's here, or the process lives on
		}
		if threads <= 1 {
			break
		}
	}
	if w.forget(key, c) {
		close(c)
	}
}

// state reads from /proc whether the first thread of a process ends, and how
// many threads there are. A process that is gone has ended.
func state(pid int) (ends bool, threads int) {
	const (
		flagsField, threadsField = 6, 17 // of /proc/PID/stat, counted from behind the name
		exiting                  = 0x4   // PF_EXITING
	)
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH), 0 // ESRCH: it went between opening and reading
	}
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name may hold anything
	if len(f) <= threadsField {
		return false, 0
	}
	flags, err := strconv.ParseUint(string(f[flagsField]), 10, 64)
	n, err2 := strconv.Atoi(string(f[threadsField]))
	return err == nil && err2 == nil && flags&exiting != 0, n
}

// Run keeps the watcher until ctx ends, and then closes it.
func (w *Watcher) Run(ctx context.Context) {
	if w == nil {
		return
	}
	<-ctx.Done()
	w.release()
	<-w.done
}

func (w *Watcher) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.link != nil {
		w.link.Close()
	}
	if w.reader != nil {
		w.reader.Close()
	}
	if w.prog != nil {
		w.prog.Close()
	}
	for _, m := range []*ebpf.Map{w.watched, w.ring} {
		if m != nil {
			m.Close()
		}
	}
}
