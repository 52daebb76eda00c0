package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control"
	"github.com/onpath/onpath/store/mem"
)

// Server is the server's loop over a fleet, whose clock stands still: no node is away
// however long a plan takes.
type Server struct {
	fleet  *Fleet
	store  onpath.Store
	loop   *control.Controller
	pushes chan string // nodes that got a new plan
	stop   func() error
}

// Serve runs the loop until Close. The nodes of the fleet are connected.
func Serve(ctx context.Context, f *Fleet) (*Server, error) {
	store := mem.New(mem.Options{})
	var changes []onpath.Change
	for k, o := range f.Objects {
		changes = append(changes, onpath.Change{Key: k, Object: onpath.Clone(o), Version: onpath.AnyVersion})
	}
	for part := range slices.Chunk(changes, onpath.MaxWrite) {
		if _, err := store.Write(ctx, onpath.Batch{Changes: part}); err != nil {
			return nil, fmt.Errorf("fill the store: %w", err)
		}
	}
	s := &Server{fleet: f, store: store, pushes: make(chan string, len(f.States))}
	s.loop = control.New(control.Options{
		Store: store, Hub: s, Clock: func() time.Time { return f.Now }, Settings: f.Snapshot().Settings, Wait: time.Hour,
	})
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.loop.Run(ctx) }()
	s.stop = func() error { cancel(); return errors.Join(<-done, store.Close()) }
	select {
	case <-s.loop.Loaded():
	case err := <-done:
		cancel()
		return nil, errors.Join(fmt.Errorf("the server's loop ended: %w", err), store.Close())
	}
	for name, st := range f.States {
		node := f.Objects[onpath.Key{Kind: onpath.KindNode, Name: name}].(*onpath.Node)
		s.loop.NodeConnected(onpath.NodeHello{Node: name, Spec: node.Spec, Plan: st.Acked, Report: *st.Report})
	}
	return s, nil
}

// Store has the fleet's objects.
func (s *Server) Store() onpath.Store { return s.store }

// Controller is the loop.
func (s *Server) Controller() *control.Controller { return s.loop }

// Close ends the loop.
func (s *Server) Close() error { return s.stop() }

// Push implements control.Hub. Nodes of the fleet do not answer.
func (s *Server) Push(node string, _ *onpath.NodePlan) {
	select {
	case s.pushes <- node:
	default: // nobody waits for them
	}
}

// Call implements control.Hub.
func (s *Server) Call(context.Context, string, onpath.NodeOp, any) (io.ReadWriteCloser, error) {
	return nil, onpath.Errorf(onpath.CodeUnavailable, "a virtual node does nothing")
}

// reportTimeout is how long the loop may take to answer a report.
const reportTimeout = 10 * time.Minute

// ReportFailure has one instance fail, and waits until its gateway gets a new plan; then
// all is well again.
func (s *Server) ReportFailure() error {
	node, r := s.fleet.failure()
	if err := s.report(r, nodeName(0, 0)); err != nil {
		return err
	}
	return s.report(s.fleet.States[node].Report, nodeName(0, 0))
}

// report sends a report, and waits until a node gets a new plan.
func (s *Server) report(r *onpath.NodeReport, pushed string) error {
	for len(s.pushes) > 0 {
		<-s.pushes
	}
	s.loop.NodeReported(*r)
	timeout := time.After(reportTimeout)
	for {
		select {
		case n := <-s.pushes:
			if n == pushed {
				return nil
			}
		case <-timeout:
			return fmt.Errorf("node %s got no new plan within %v of a report of node %s", pushed, reportTimeout, r.Node)
		}
	}
}

// ReportNothing sends a report of each node that says what its last one said, and
// returns how many.
func (s *Server) ReportNothing() int {
	for _, st := range s.fleet.States {
		s.loop.NodeReported(*st.Report)
	}
	return len(s.fleet.States)
}

// ReportCounts sends one report in which nothing but the counts of a draining instance's
// flows have changed. less is how many flows have ended.
func (s *Server) ReportCounts(less uint64) error {
	for _, st := range s.fleet.States {
		k := slices.IndexFunc(st.Report.Instances, func(i onpath.InstanceReport) bool { return i.Flows > 0 })
		if k < 0 {
			continue
		}
		r := *st.Report
		r.Instances = slices.Clone(r.Instances)
		r.Instances[k].Flows -= less
		s.loop.NodeReported(r)
		return nil
	}
	return errors.New("no instance of the fleet drains")
}

// Rest waits until the loop has done what it was woken for: it waits for more of the same
// before it plans, writes in the background, and plans again.
func (s *Server) Rest(ctx context.Context) error {
	for idle := 0; idle < 3; {
		start := time.Now()
		time.Sleep(20 * time.Millisecond)
		if err := s.loop.Ready(ctx); err != nil {
			return err
		}
		if idle++; time.Since(start) > 30*time.Millisecond {
			idle = 0
		}
	}
	return nil
}
