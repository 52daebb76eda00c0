package instance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// health is onpath.Health with its defaults filled in.
type health struct {
	TCP      uint16
	Exec     []string
	Every    onpath.Duration
	Failures int
	Start    onpath.Duration
	budget   time.Duration // of an ebpf function, for each packet
	wakes    bool          // packets wait for it to be ready
}

func healthOf(h onpath.Health) health {
	if h.Every <= 0 {
		h.Every = onpath.Duration(time.Second)
	}
	if h.Failures <= 0 {
		h.Failures = 3
	}
	if h.Start <= 0 {
		h.Start = onpath.Duration(time.Minute)
	}
	return health{TCP: uint16(h.TCP), Exec: h.Exec, Every: h.Every, Failures: h.Failures, Start: h.Start}
}

func (h health) probed() bool { return h.TCP != 0 || len(h.Exec) > 0 || h.budget != 0 }

// Until the first success probes come as often as this, so that readiness is
// not found a whole period late; running a command costs more.
const (
	eagerTCP  = 50 * time.Millisecond
	eagerExec = 250 * time.Millisecond
	wakingTCP = 2 * time.Millisecond
)

// leastPause between two probes; less while packets wait.
const leastPause = 10 * time.Millisecond

// wait is the time between the beginnings of two probes.
func (h health) wait(eager bool) time.Duration {
	every := time.Duration(h.Every)
	switch {
	case !eager:
		return every
	case h.wakes && h.TCP != 0:
		return min(every, wakingTCP)
	case h.TCP != 0, h.budget != 0:
		return min(every, eagerTCP)
	}
	return min(every, eagerExec)
}

// pause is the least time between two probes, however long one takes.
func (h health) pause(eager bool) time.Duration {
	if eager && h.wakes {
		return wakingTCP / 2
	}
	return leastPause
}

// timeout of one probe. A probe that takes longer than a period has failed, but
// nothing is asked to answer within less than these.
func (h health) timeout() time.Duration {
	if h.TCP != 0 {
		return min(max(time.Duration(h.Every), 100*time.Millisecond), 5*time.Second)
	}
	return min(max(time.Duration(h.Every), time.Second), 10*time.Second)
}

// startProbes probes until stopProbes is called; without a probe the channel of results
// stays silent.
func (w *supervision) startProbes(ctx context.Context) {
	in := w.in
	if !w.health.probed() {
		w.eager, w.probes, w.stopProbes = make(chan bool, 1), nil, func() {}
		return
	}
	w.eager = make(chan bool, 1)
	h, eagerly, eager := w.health, w.eager, !w.ready
	w.probes, w.stopProbes = watch(ctx, func(ctx context.Context, send func(error)) {
		var clock stopwatch
		for ctx.Err() == nil {
			select {
			case eager = <-eagerly:
			default:
			}
			begin := in.s.part.Clock.Now()
			send(prober{in.self}.probe(ctx, h, &clock))
			// From beginning to beginning: a probe that waits in vain must not
			// make the next one later.
			left := h.wait(eager) - in.s.part.Clock.Now().Sub(begin)
			_ = in.s.part.Clock.Sleep(ctx, max(left, h.pause(eager)))
		}
	})
}

// prober probes an instance.
type prober struct{ self }

// probe asks once.
func (in prober) probe(ctx context.Context, h health, s *stopwatch) error {
	ctx, cancel := patiently(ctx, h.timeout(), readCPUTimes)
	defer cancel()
	var err error
	switch {
	case h.budget != 0:
		return in.probeInline(ctx, h, s)
	case h.TCP != 0:
		err = in.probeTCP(ctx, h.TCP)
	default:
		err = in.probeExec(ctx, h.Exec)
	}
	if err != nil && context.Cause(ctx) == errLate {
		return fmt.Errorf("%w (%w)", err, errLate)
	}
	return err
}

// probeTCP connects within the instance's namespace: to its loopback, else to
// its own addresses.
func (in prober) probeTCP(ctx context.Context, p uint16) error {
	targets := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	for _, a := range in.current().Addresses {
		targets = append(targets, a.Addr())
	}
	var last error
	err := netnsrun.Do(in.s.part.Dir.NetNS(in.id), func() error {
		var d net.Dialer
		for _, a := range targets {
			c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, p).String())
			if err == nil {
				c.Close()
				return nil
			}
			if last == nil {
				last = err
			}
		}
		return last
	})
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		var call *os.SyscallError
		if errors.As(err, &call) {
			err = call.Err
		}
		return fmt.Errorf("TCP port %d does not answer: %w", p, err)
	}
	return nil
}

// probeExec runs the command in the instance.
func (in prober) probeExec(ctx context.Context, command []string) error {
	rt, err := in.runtime()
	if err != nil {
		return err
	}
	var out tail
	code, err := rt.Exec(ctx, in.id, onpath.ExecSpec{Command: command, Stdout: &out, Stderr: &out})
	if err != nil {
		return fmt.Errorf("run %s: %w", command[0], err)
	}
	if code != 0 {
		return &probeEnded{command[0], code, oneLine(out.String())}
	}
	return nil
}

// probeEnded is a probe's command that found the instance bad.
type probeEnded struct {
	command string
	code    int
	printed string
}

func (e *probeEnded) Error() string { return fmt.Sprintf("%s ended with code %d", e.command, e.code) }

// notAsked takes a probe that could not be run: who could not ask has not been
// answered no. What is ready stays so, for its end shows without a probe; what is
// not does not become so, and its time to become so stands still.
func (w *supervision) notAsked(ctx context.Context, err error) {
	in := w.in
	if ctx.Err() != nil {
		return
	}
	if !w.ready {
		w.badSince = in.s.part.Clock.Now()
	}
	w.unasked++
	if w.unasked != w.health.Failures { // once, and not of a short hitch
		return
	}
	why := Cause{"ProbeNotRun", fmt.Sprintf("its probe cannot be run: %v", err)}
	switch {
	case w.ready:
		in.st.set(onpath.InstanceReady, Cause{why.Reason, why.Words + "; it counts as ready until one can"})
	case w.everReady:
		in.st.set(onpath.InstanceUnready, why)
	default:
		in.st.set(onpath.InstanceStarting, why)
	}
	in.s.part.TellInstance(w.plan, true, why.Reason, "%s", why.Words)
}

// askedAgain takes back what notAsked said.
func (w *supervision) askedAgain() {
	in := w.in
	if w.ready && w.unasked >= w.health.Failures {
		in.st.set(onpath.InstanceReady, Cause{})
	}
	w.unasked = 0
}

// tail keeps the first 200 bytes of a probe's output, for the message.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[:min(len(p), 200-len(t.b))]...)
	return len(p), nil
}

func (t *tail) String() string { return string(t.b) }
