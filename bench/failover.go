package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/lab"
)

// The faults of failover and what may be lost of each.
const (
	faultKill    = "instance killed"
	faultStall   = "instance stalled"
	faultNode    = "compute node killed"
	faultLink    = "link cut"
	faultGateway = "gateway killed, of a pair"
	faultRestart = "agent killed and started again"
	faultUpgrade = "upgrade"
	faultNone    = "full CPU, no fault"

	metricSilent = "flows that stayed silent"
	metricAlarms = "false alarms"
	unitMillis   = "ms"
)

func failover() Benchmark {
	b := Benchmark{
		Name: "failover", rounds: 3, cost: cost{11 * time.Minute, 30 * time.Second},
		Question: "for how long does a flow stand still when something fails, and is it kept?",
		run:      runFailover,
	}
	for _, f := range []struct {
		fault string
		limit float64
	}{{faultKill, 50}, {faultStall, 300}, {faultNode, 300}, {faultLink, 300}, {faultGateway, 1000}} {
		b.Targets = append(b.Targets,
			Target{Text: fmt.Sprintf("%s: blackout ≤ %g ms", f.fault, f.limit), Case: f.fault, Contestant: "onpath", Metric: MetricBlackout, Of: "high", Max: f.limit},
			Target{Text: f.fault + ": connections kept", Case: f.fault, Contestant: "onpath", Metric: metricSilent, Of: "high", Max: 0})
	}
	for _, f := range []string{faultRestart, faultUpgrade} {
		b.Targets = append(b.Targets, Target{Text: f + ": 0 packets lost", Case: f, Contestant: "onpath", Metric: MetricLost, Of: "high", Max: 0})
	}
	b.Targets = append(b.Targets, Target{Text: "ten minutes at full CPU: no false alarm", Case: faultNone, Contestant: "onpath", Metric: metricAlarms, Max: 0})
	return b
}

const failoverChain = `
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: pair}
spec: {function: queue, instances: 2, place: {spread: node}}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: failing}
spec:
  from: {hosts: client}
  to: {hosts: origin}
  through: [{deployment: pair, lost: repick, none: drop}]
`

// runFailover measures the longest phase last: who breaks the run off then has the
// others.
func runFailover(ctx context.Context, r *Run) error {
	for _, phase := range []func(context.Context) error{r.failures, r.gatewayKilled, r.upgraded, r.fullCPU} {
		err := phase(ctx)
		var why lacking
		if errors.As(err, &why) {
			r.skip("onpath", string(why))
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// failing does something where the chain runs.
func (r *Run) failing(ctx context.Context, setUp func(context.Context) (*testbed, error), do func(*testbed) error) (err error) {
	s, err := setUp(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	if err := s.apply(ctx, failoverChain); err != nil {
		return err
	}
	if err := s.WaitActive(ctx, "failing", readyTimeout, func(m string) { r.say("%s", m) }); err != nil {
		return err
	}
	return do(s)
}

// failures are those behind one gateway.
func (r *Run) failures(ctx context.Context) error {
	return r.failing(ctx, r.newTestbed, func(s *testbed) error {
		for round := range r.Rounds() {
			for _, f := range s.faults(pick(r, time.Second, 500*time.Millisecond)) {
				r.say("round %d of %d, %s", round+1, r.Rounds(), f.name)
				if err := r.fault(ctx, s, f, round); err != nil {
					return fmt.Errorf("%s: %w", f.name, err)
				}
			}
		}
		return nil
	})
}

// upgraded starts everything anew with the earlier program, and then replaces that by
// this one: at the server, and at one node after the other.
func (r *Run) upgraded(ctx context.Context) error {
	if r.Previous == "" {
		r.skip(faultUpgrade, "no earlier build of onpath to upgrade from was named by --previous")
		return nil
	}
	for round := range r.Rounds() {
		r.say("round %d of %d, %s", round+1, r.Rounds(), faultUpgrade)
		err := r.failing(ctx, r.newPreviousTestbed, func(s *testbed) error { return r.fault(ctx, s, s.upgrade(), round) })
		if err != nil {
			return fmt.Errorf("%s: %w", faultUpgrade, err)
		}
	}
	return nil
}

// upgrade has the testbed run this program from then on.
func (s *testbed) upgrade() fault {
	return fault{faultUpgrade, func(ctx context.Context) error {
		s.Use(testbedProgram)
		if err := errors.Join(s.Kill("server", syscall.SIGTERM), s.StartServer(ctx)); err != nil {
			return err
		}
		for _, name := range []string{"gw", "n1", "n2"} {
			if err := errors.Join(s.Kill(name, syscall.SIGTERM), s.StartNode(ctx, name)); err != nil {
				return err
			}
		}
		return nil
	}, func(context.Context) error { return nil }}
}

// fullCPU is a long time without a fault.
func (r *Run) fullCPU(ctx context.Context) error {
	return r.failing(ctx, r.newTestbed, func(s *testbed) error {
		return r.alarms(ctx, s, pick(r, 10*time.Minute, 3*time.Second))
	})
}

// fault is something that goes wrong, and is put right again.
type fault struct {
	name string
	do   func(context.Context) error
	undo func(context.Context) error
}

func (s *testbed) faults(long time.Duration) []fault {
	nothing := func(context.Context) error { return nil }
	var stopped int
	return []fault{
		{faultRestart, func(ctx context.Context) error {
			return errors.Join(s.Kill("gw", syscall.SIGKILL), s.StartNode(ctx, "gw"))
		}, nothing},
		{faultKill, func(context.Context) error { return signalOne(syscall.SIGKILL, nil) }, nothing},
		{faultStall, func(context.Context) error { return signalOne(syscall.SIGSTOP, &stopped) },
			func(context.Context) error { _ = syscall.Kill(stopped, syscall.SIGCONT); return nil }},
		{faultLink, func(context.Context) error {
			link, err := s.Lab.FindLink("n2:underlay")
			if err != nil {
				return err
			}
			return s.Lab.Cut(link, long)
		}, nothing},
		{faultNode, func(context.Context) error {
			_, err := s.Lab.KillHost("n1", long)
			return err
		}, func(ctx context.Context) error {
			_ = s.Kill("n1", syscall.SIGKILL) // it is dead already; its process is waited for
			return s.StartNode(ctx, "n1")
		}},
	}
}

// signalOne sends a signal to the process of one of the two instances.
func signalOne(sig syscall.Signal, to *int) error {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || !strings.HasPrefix(string(b), testbedProgram+"\x00bench\x00queue\x00--install") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if to != nil {
			*to = pid
		}
		return syscall.Kill(pid, sig)
	}
	return errors.New("no process of the function was found")
}

// The flows that show blackouts: so many, each with a packet every two ms.
const (
	gaugeFlows  = 20
	gaugeRate   = 500
	gaugeBefore = 500 * time.Millisecond
	gaugeAfter  = 2500 * time.Millisecond
)

// fault measures one, and waits until all is well again.
func (r *Run) fault(ctx context.Context, s *testbed, f fault, round int) error {
	if err := s.healthy(ctx); err != nil {
		return err
	}
	g, err := s.Lab.StartGauge(lab.GaugeSpec{From: "client", To: "origin", Flows: gaugeFlows, PerSecond: gaugeRate})
	if err != nil {
		return err
	}
	rest(ctx, gaugeBefore)
	doErr := f.do(ctx)
	rest(ctx, gaugeAfter)
	rep, err := g.Stop(ctx)
	if err := errors.Join(doErr, err, f.undo(ctx)); err != nil {
		return err
	}
	silent := 0
	for _, flow := range rep.Flows {
		if flow.Silent {
			silent++
		}
	}
	r.sample(f.name, "onpath", MetricBlackout, unitMillis, round, float64(time.Duration(rep.Blackout).Microseconds())/1e3)
	r.sample(f.name, "onpath", MetricLost, "packets", round, float64(rep.Lost))
	r.sample(f.name, "onpath", metricSilent, "flows", round, float64(silent))
	return nil
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// healthy waits until both instances are ready, and for as long as their links
// and probes take to be believed again.
func (s *testbed) healthy(ctx context.Context) error {
	err := s.WaitFor(ctx, "both instances are ready", readyTimeout, func() (bool, error) {
		n, err := s.ready(ctx)
		return n == 2, err
	})
	rest(ctx, time.Second)
	return err
}

func (s *testbed) ready(ctx context.Context) (n int, err error) {
	list, err := s.Instances(ctx)
	for _, i := range list {
		if i.Status.State == onpath.InstanceReady {
			n++
		}
	}
	return n, err
}

// losses counts the events that tell of a loss: of a node or an instance.
func (s *testbed) losses(ctx context.Context) (n int, err error) {
	var list []onpath.Event
	err = s.Get(ctx, &list, "events")
	for _, e := range list {
		switch e.Spec.Reason {
		case "PeerLost", "ProbeFailed", "Stalled", "Exited", "Killed":
			n += max(e.Spec.Count, 1)
		}
	}
	return n, err
}

// alarms keeps every CPU busy, and counts what was taken for dead.
func (r *Run) alarms(ctx context.Context, s *testbed, long time.Duration) error {
	if err := s.healthy(ctx); err != nil {
		return err
	}
	before, err := s.losses(ctx)
	if err != nil {
		return err
	}
	busyCtx, stop := context.WithTimeout(ctx, long)
	defer stop()
	var wg sync.WaitGroup
	for range runtime.NumCPU() {
		wg.Go(func() {
			for busyCtx.Err() == nil {
			}
		})
	}
	unready := 0
	for until := time.Now().Add(long); time.Now().Before(until) && ctx.Err() == nil; rest(ctx, time.Second) {
		r.say("full CPU, %v to go", time.Until(until).Round(time.Second))
		n, err := s.ready(ctx)
		if err != nil {
			stop()
			wg.Wait()
			return err
		}
		if n < 2 {
			unready++
		}
	}
	stop()
	wg.Wait()
	after, err := s.losses(ctx)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err // a time that was cut short shows nothing
	}
	r.sample(faultNone, "onpath", metricAlarms, "alarms", 0, float64(max(unready, after-before)))
	return nil
}
