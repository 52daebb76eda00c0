package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/cli/blackout"
	"github.com/onpath/onpath/lab"
)

// settleFirst is how long flows are watched before the fault.
const settleFirst = time.Second

// capturedBytes of each packet: all headers there may be.
const capturedBytes = 128

// run causes a fault while flows are measured, and shows what came of it.
func (f *faultFlags) run(c *cobra.Command, l *lab.Lab, cl *client.Client, cause func(context.Context) (*faultDone, error)) error {
	if err := f.g.checkOutput(); err != nil {
		return err
	}
	ctx := c.Context()
	if f.watch == 0 {
		done, err := begin(ctx, cause)
		if err != nil {
			return err
		}
		return f.show(c, done)
	}
	var gauge *lab.Gauge
	var watch *captures
	var err error
	switch {
	case f.probe != "":
		from, to, ok := strings.Cut(f.probe, ":")
		if !ok {
			return badUsage("--probe %s: write two hosts of the lab, SOURCE:DESTINATION", f.probe)
		}
		if gauge, err = l.StartGauge(lab.GaugeSpec{From: from, To: to, Flows: f.flows}); err != nil {
			return err
		}
	case cl != nil:
		if watch, err = startCaptures(ctx, cl); err != nil {
			return err
		}
	default: // a lab alone, and nobody to ask
		done, err := begin(ctx, cause)
		if err != nil {
			return err
		}
		return f.show(c, done)
	}
	sleep(ctx, settleFirst)
	began := time.Now()
	done, err := begin(ctx, cause)
	var off error
	if err == nil && !sleep(ctx, f.watch) {
		off = brokenOff(done, time.Now())
	}
	if gauge != nil {
		r, stopErr := gauge.Stop(context.WithoutCancel(ctx))
		if done != nil {
			done.Probe = r
		}
		err = errors.Join(err, stopErr)
	}
	if watch != nil {
		r, stopErr := watch.stop(began)
		if done != nil {
			done.Flows = r
		}
		err = errors.Join(err, stopErr)
	}
	if off != nil && err == nil {
		if done.Probe != nil || done.Flows != nil && len(done.Flows.Flows) > 0 {
			err = f.show(c, done) // as far as it was watched
		}
		return errors.Join(err, off)
	}
	if err != nil {
		return errors.Join(err, off)
	}
	return f.show(c, done)
}

// begin causes the fault, unless the command was interrupted before.
func begin(ctx context.Context, cause func(context.Context) (*faultDone, error)) (*faultDone, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted before the fault began; nothing was done: %w", ctx.Err())
	}
	done, err := cause(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("interrupted while the fault was being caused; if it began, it ends by itself: %w", ctx.Err())
	}
	return done, err
}

// brokenOff says what goes on after a measurement that was interrupted: faults end
// when their time is up, whoever asked for them.
func brokenOff(d *faultDone, now time.Time) error {
	state := "goes on until " + d.Until.Local().Format(time.TimeOnly) + ", and then ends by itself"
	if d.Kind == string(onpath.FaultKill) {
		state = "is done; the node starts the instance again"
	} else if !now.Before(d.Until) {
		state = "is over"
	}
	return fmt.Errorf("interrupted while blackouts were measured: %s on %s %s: %w", d.Kind, d.Target, state, context.Canceled)
}

// sleep says whether it slept all the time.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// captures run at the uplinks of all gateways.
type captures struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	parts  []*part
}

type part struct {
	gateway string
	data    []byte
	err     error
}

func (p *part) Write(b []byte) (int, error) {
	p.data = append(p.data, b...)
	return len(b), nil
}

func startCaptures(ctx context.Context, cl *client.Client) (*captures, error) {
	list, _, err := cl.List(ctx, onpath.KindNode, "")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &captures{cancel: cancel}
	for _, o := range list {
		n := o.(*onpath.Node)
		if n.Status.Edge == 0 || !n.Status.Ready {
			continue
		}
		p := &part{gateway: n.Metadata.Name}
		w.parts = append(w.parts, p)
		w.wg.Go(func() {
			p.err = cl.Capture(ctx, client.CaptureAt{Node: p.gateway, Length: capturedBytes}, p)
		})
	}
	if len(w.parts) == 0 {
		cancel()
		e := onpath.Errorf(onpath.CodeUnavailable, "there is no gateway at whose uplinks flows could be measured")
		e.Remedy = "name uplinks on a node, or leave measuring out with --watch 0"
		return nil, e
	}
	return w, nil
}

// stop ends the captures and judges them together.
func (w *captures) stop(fault time.Time) (*blackout.Report, error) {
	w.cancel()
	w.wg.Wait()
	all := &blackout.Report{}
	for _, p := range w.parts {
		if p.err != nil && !errors.Is(p.err, context.Canceled) && !errors.Is(p.err, io.ErrUnexpectedEOF) &&
			!errors.Is(p.err, net.ErrClosed) {
			return nil, p.err
		}
		r, err := blackout.Read(strings.NewReader(string(p.data)), fault, onpath.CapturedOut)
		if err != nil {
			return nil, err
		}
		all.Flows = append(all.Flows, r.Flows...)
		all.Longest, all.Resolution = max(all.Longest, r.Longest), max(all.Resolution, r.Resolution)
		all.Unmeasured += r.Unmeasured
		all.Packets += r.Packets
	}
	return all, nil
}
