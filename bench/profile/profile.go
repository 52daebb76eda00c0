// Package profile says where one CPU's time goes: the kernel's clock interrupts
// it a few thousand times a second, and what it was at is counted by function.
// eBPF programs are functions like others.
package profile

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Share is how much of the time one function took, without those it called.
type Share struct {
	Function string  `json:"function"`
	Share    float64 `json:"share"` // of 1
}

// UserSpace stands for all that is no kernel code.
const UserSpace = "user space"

// frequency of samples, 1/s: odd, so that they do not beat with timers.
const frequency = 3989

// ringPages is room for half a minute of samples; a power of two.
const ringPages = 512

// Sampler samples one CPU.
type Sampler struct {
	fd   int
	ring []byte
}

// Start begins to sample a CPU.
func Start(cpu int) (*Sampler, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: frequency, Sample_type: unix.PERF_SAMPLE_IP, Bits: unix.PerfBitFreq | unix.PerfBitDisabled,
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("sample CPU %d: %w", cpu, err)
	}
	ring, err := unix.Mmap(fd, 0, (1+ringPages)*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("sample CPU %d: %w", cpu, err)
	}
	s := &Sampler{fd, ring}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		s.close()
		return nil, fmt.Errorf("sample CPU %d: %w", cpu, err)
	}
	return s, nil
}

func (s *Sampler) close() {
	_ = unix.Munmap(s.ring)
	unix.Close(s.fd)
}

// Stop ends sampling and gives the functions, those that took most first. It must
// be called while the programs are still there whose names it is to tell.
func (s *Sampler) Stop() ([]Share, error) {
	defer s.close()
	if err := unix.IoctlSetInt(s.fd, unix.PERF_EVENT_IOC_DISABLE, 0); err != nil {
		return nil, fmt.Errorf("end sampling: %w", err)
	}
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return nil, fmt.Errorf("read the kernel's symbols: %w", err)
	}
	defer f.Close()
	table, err := readSymbols(f)
	if err != nil {
		return nil, err
	}
	head := atomic.LoadUint64((*uint64)(unsafe.Pointer(&(*unix.PerfEventMmapPage)(unsafe.Pointer(&s.ring[0])).Data_head)))
	return table.count(addresses(s.ring[os.Getpagesize():], head)), nil
}

// addresses of the samples in a ring that was written up to head and never read:
// what had no room is not in it.
func addresses(ring []byte, head uint64) (list []uint64) {
	const header = 8 // type, misc, size
	for at := uint64(0); at+header <= head && at+header <= uint64(len(ring)); {
		kind, size := binary.NativeEndian.Uint32(ring[at:]), binary.NativeEndian.Uint16(ring[at+6:])
		if size < header || at+uint64(size) > uint64(len(ring)) {
			break
		}
		if kind == unix.PERF_RECORD_SAMPLE && size >= header+8 {
			list = append(list, binary.NativeEndian.Uint64(ring[at+header:]))
		}
		at += uint64(size)
	}
	return list
}

// symbol is where a function of the kernel begins.
type symbol struct {
	at   uint64
	name string
}

type symbols []symbol

// readSymbols reads /proc/kallsyms.
func readSymbols(r io.Reader) (list symbols, err error) {
	in := bufio.NewScanner(r)
	for in.Scan() {
		f := strings.Fields(in.Text())
		if len(f) < 3 || !strings.ContainsAny(f[1], "tTwW") {
			continue
		}
		at, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("read the kernel's symbols: %w", err)
		}
		list = append(list, symbol{at, f[2]})
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("read the kernel's symbols: %w", err)
	}
	slices.SortStableFunc(list, func(a, b symbol) int { return cmp.Compare(a.at, b.at) })
	return list, nil
}

// name of the function that an address lies in.
func (l symbols) name(address uint64) string {
	if address>>63 == 0 {
		return UserSpace
	}
	i, found := slices.BinarySearchFunc(l, address, func(s symbol, a uint64) int { return cmp.Compare(s.at, a) })
	if !found {
		i--
	}
	if i < 0 || l[i].at == 0 {
		return "kernel"
	}
	return tidy(l[i].name)
}

// tidy leaves the hash out of a program's name: bpf_prog_6deef7357e7b4530_steer.
func tidy(name string) string {
	rest, ok := strings.CutPrefix(name, "bpf_prog_")
	if _, own, found := strings.Cut(rest, "_"); ok && found {
		return "bpf: " + own
	}
	return name
}

func (l symbols) count(samples []uint64) (out []Share) {
	hits := map[string]int{}
	for _, a := range samples {
		hits[l.name(a)]++
	}
	for name, n := range hits {
		out = append(out, Share{name, float64(n) / float64(len(samples))})
	}
	slices.SortFunc(out, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Function, b.Function))
	})
	return out
}
