package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Flows are the flows of a source: flow i comes from the i-th address after From
// and goes to To; from 2^20 flows on their source ports differ too.
type Flows struct {
	Count    int
	First    int // the first flow's number
	From, To netip.Addr
	Port     uint16 // the first source port
	ToPort   uint16
}

// Order is in which order a source takes its flows.
type Order uint32

// The orders.
const (
	Random     Order = 0 // each frame's flow is drawn, all with equal chance
	Sequential Order = 1 // one flow after the other, again and again
)

// Job is what a source sends.
type Job struct {
	Flows Flows
	Order Order
	Back  bool // the answers of the flows: source and destination exchanged
	Stamp bool // with the time of sending, for a sink that measures delays
	// Pairs are of TCP, in sequential order, and no sink counts them: a SYN of each flow, and
	// later an acknowledgement of a number that is guessed.
	Pairs bool
	SYNs  bool // of TCP, and no sink counts them: a SYN of each flow
	// Frames to send, or as many as fit into Time.
	Frames uint64
	Time   time.Duration
	// Rate in frames per second; 0: as fast as can be.
	Rate float64
	// Payload stands in each datagram before what the sink knows it by. Without it frames
	// are as small as can be.
	Payload []byte
}

// Source sends frames out of one device.
type Source struct {
	coll    *ebpf.Collection
	ifindex int
	dst     net.HardwareAddr
	src     net.HardwareAddr
	jobs    chan func()
	random  uint64
}

// live is BPF_F_TEST_XDP_LIVE_FRAMES.
const live = 2

// NewSource makes a source that sends from a device, which must carry an XDP
// program (a sink's), to the MAC address dst. The thread that sends is pinned to
// the CPU and stays in the namespace.
func NewSource(ns, dev string, src, dst net.HardwareAddr, cpu int) (*Source, error) {
	c, err := load()
	if err != nil {
		return nil, err
	}
	index, err := indexOf(ns, dev)
	if err != nil {
		c.Close()
		return nil, err
	}
	s := &Source{coll: c, ifindex: index, src: src, dst: dst, jobs: make(chan func()), random: 0x9e3779b97f4a7c15}
	ready := make(chan error, 1)
	go s.work(ns, cpu, ready)
	if err := <-ready; err != nil {
		c.Close()
		return nil, err
	}
	return s, nil
}

// work runs jobs on a thread of its own, which ends with the source.
func (s *Source) work(ns string, cpu int, ready chan<- error) {
	runtime.LockOSThread() // and never unlock: the thread ends with this goroutine
	ready <- enter(ns, cpu)
	for job := range s.jobs {
		job()
	}
}

func enter(ns string, cpu int) error { return errors.Join(join(ns, cpu), giveWay()) }

// join moves the calling thread into a namespace and onto a CPU.
func join(ns string, cpu int) error {
	f, err := os.Open(ns)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", ns, err)
	}
	return pin(cpu)
}

// Close ends the source.
func (s *Source) Close() error {
	close(s.jobs)
	s.coll.Close()
	return nil
}

// Sent says what a job did.
type Sent struct {
	Frames uint64
	// Before is how many were sent before, to find out how many fit into the time.
	Before uint64
	// Rate is how many frames were sent a second, by the clock of the program:
	// without the time the kernel takes to set up and tear down a run.
	Rate float64
	// Time of the call, with set-up and tear-down.
	Time time.Duration
}

// Run sends, and gives what was sent until the job was done or ctx ended.
func (s *Source) Run(ctx context.Context, j Job) (sent Sent, err error) {
	runs, before := j.Frames, uint64(0)
	if runs == 0 {
		if runs, before, err = s.runs(ctx, j); err != nil {
			return sent, err
		}
	}
	if j.Order == Sequential {
		j.Flows.First += int(before)
	}
	sent, err = s.job(ctx, j, runs)
	sent.Before = before
	return sent, err
}

// A paced source reads the clock until a frame is due, which takes a run each; in
// batches of one, longer.
const (
	runTime       = 50 * time.Nanosecond
	singleRunTime = 200 * time.Nanosecond
)

// runs estimates how many runs a job without a number of frames takes, by sending
// some before. Once its time is over, what is left goes in no time.
func (s *Source) runs(ctx context.Context, j Job) (runs, before uint64, err error) {
	if j.Rate > 0 && j.Stamp {
		return uint64(j.Time / singleRunTime), 0, nil
	}
	if j.Rate > 0 {
		return uint64(j.Time / runTime), 0, nil
	}
	some := uint64(1 << 16)
	if j.Order == Sequential {
		some = 1 << 14 // of flows that are seen once, few
	}
	trial := j
	trial.Time = 0
	sent, err := s.job(ctx, trial, some)
	if err != nil {
		return 0, 0, err
	}
	return uint64(sent.Rate*j.Time.Seconds()*5/4) + some, sent.Frames, nil
}

// job has the source's thread do a job with so many runs of the program.
func (s *Source) job(ctx context.Context, j Job, runs uint64) (sent Sent, err error) {
	if err := s.prepare(j); err != nil {
		return sent, err
	}
	done := make(chan struct{})
	s.jobs <- func() {
		defer close(done)
		start := time.Now()
		size := uint64(batch)
		if j.Stamp {
			size = 1 // a frame that waited for others of its batch would be blamed on the router
		}
		err = s.send(ctx, runs, size, j)
		sent.Time = time.Since(start)
	}
	<-done
	if err != nil {
		return sent, err
	}
	var p progressValue
	if err := s.coll.Maps["progress"].Lookup(uint32(0), &p); err != nil {
		return sent, fmt.Errorf("read what was sent: %w", err)
	}
	sent.Frames, s.random = p.Sent, p.Random
	if p.Last > p.Begin {
		sent.Rate = float64(p.Counted) * 1e9 / float64(p.Last-p.Begin)
	}
	return sent, nil
}

func (s *Source) prepare(j Job) error {
	f := j.Flows
	p := planValue{Port: f.Port, DPort: f.ToPort, Addr: number(f.From), DAddr: number(f.To),
		Flows: uint32(f.Count), First: uint32(f.First), Order: uint32(j.Order), Time: uint64(j.Time)}
	if j.Rate > 0 {
		p.Interval = uint64(256e9 / j.Rate)
	}
	p.Length = uint32(FrameLen + len(j.Payload))
	copy(p.Dst[:], s.dst)
	copy(p.Src[:], s.src)
	if j.Back {
		p.Flags |= flagBack
	}
	if j.Stamp {
		p.Flags |= flagStamp
	}
	if j.Pairs {
		p.Flags |= flagPairs
	}
	if j.SYNs {
		p.Flags |= flagSYNs
	}
	if err := s.coll.Maps["plans"].Put(uint32(0), p); err != nil {
		return fmt.Errorf("tell the source what to send: %w", err)
	}
	if err := s.coll.Maps["progress"].Put(uint32(0), progressValue{Random: s.random}); err != nil {
		return fmt.Errorf("reset the source: %w", err)
	}
	return nil
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// MaxBurst is how many frames a paced source makes good at once that was late.
const MaxBurst = 64

// batch is how many frames the kernel makes before it lets them be received.
const batch = 64

// xdpContext is struct xdp_md.
type xdpContext struct {
	Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32
}

// callRuns bounds one system call, to a second or two: a signal does not end it, and a run
// after the time is over costs half of what it costs before. Each call costs tens of
// milliseconds, because the kernel patches its code to run the program fast.
const callRuns = 1 << 23

func (s *Source) send(ctx context.Context, runs, size uint64, j Job) error {
	frame := make([]byte, FrameLen+len(j.Payload)) // the kernel makes frames of it; the program writes their heads
	copy(frame[headLen:], j.Payload)
	for began := time.Now(); runs > 0 && (j.Time == 0 || time.Since(began) < j.Time); {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(runs, callRuns)
		_, err := s.coll.Programs["generate"].Run(&ebpf.RunOptions{
			Data: frame, Repeat: uint32(n), Flags: live, BatchSize: uint32(min(n, size)),
			Context: xdpContext{DataEnd: uint32(len(frame)), Ingress: uint32(s.ifindex)},
		})
		if err != nil {
			return fmt.Errorf("send frames: %w", err)
		}
		runs -= n
	}
	return nil
}
