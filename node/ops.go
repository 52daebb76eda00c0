package node

import (
	"context"
	"encoding/json"
	"io"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/measure/trial"
	"github.com/onpath/onpath/node/peers"
)

var (
	_ session.Handler = (*Agent)(nil)
	_ Session         = (*session.Session)(nil)
)

// Serve implements session.Handler: one operation of the server's on this node.
func (a *Agent) Serve(ctx context.Context, op onpath.NodeOp, request json.RawMessage, stream io.ReadWriteCloser) error {
	switch op {
	case onpath.OpFlows:
		return serve(request, func(f onpath.FlowFilter) error { return serveFlows(ctx, a.opt.Datapath, f, stream) })
	case onpath.OpCounters:
		c, err := countersOf(ctx, a.opt.Datapath, a.punts)
		if err != nil {
			return err
		}
		return json.NewEncoder(stream).Encode(c)
	case onpath.OpLook:
		return serve(request, func(r onpath.LookRequest) error { return a.look(ctx, r, stream) })
	case onpath.OpWatch:
		return serve(request, func(s onpath.WatchSpec) error {
			c, err := a.opt.Datapath.Watch(ctx, s)
			if err != nil {
				return err
			}
			return json.NewEncoder(stream).Encode(c)
		})
	case onpath.OpCapture:
		return serve(request, func(s onpath.CaptureSpec) error {
			if err := a.capturable(s.Vport); err != nil {
				return err
			}
			return a.opt.Datapath.Capture(ctx, s, stream)
		})
	case onpath.OpExec:
		return serve(request, func(e onpath.ExecRequest) error { return a.instances.Exec(ctx, e, stream) })
	case onpath.OpLogs:
		return serve(request, func(l onpath.LogsRequest) error { return a.instances.Logs(ctx, l, stream) })
	case onpath.OpFault:
		return serve(request, func(f onpath.FaultRequest) error {
			done, err := a.Fault(f)
			if err != nil {
				return err
			}
			return json.NewEncoder(stream).Encode(done)
		})
	case onpath.OpDistances:
		return json.NewEncoder(stream).Encode(a.peers.Distances())
	case onpath.OpNotifications:
		return a.instances.Deliver(ctx, stream)
	case onpath.OpUsage:
		return json.NewEncoder(stream).Encode(a.Usage(ctx))
	case onpath.OpMeters:
		return serve(request, func(r onpath.MeterRequest) error {
			list, err := a.Meters(ctx, r)
			if err != nil {
				return err
			}
			return json.NewEncoder(stream).Encode(list)
		})
	case onpath.OpProve:
		return serve(request, func(r onpath.PasswordRequest) error { return json.NewEncoder(stream).Encode(a.leases.Proves(ctx, r)) })
	case onpath.OpEcho:
		return serve(request, func(r onpath.EchoRequest) error {
			return json.NewEncoder(stream).Encode(peers.EchoClient(ctx, a.part, r))
		})
	case onpath.OpTrial:
		return serve(request, func(p trial.Part) error { return try(ctx, a.part, &a.trying, p, stream) })
	case onpath.OpPromise:
		return serve(request, func(r onpath.PromiseRequest) error { return json.NewEncoder(stream).Encode(a.promise(r)) })
	}
	return onpath.Errorf(onpath.CodeUnsupported, "node %s does not know the operation %q; its agent is version %s",
		a.opt.Name, op, a.opt.Version)
}

// serve decodes a request; an absent one is the zero request.
func serve[T any](request json.RawMessage, do func(T) error) error {
	var r T
	if len(request) > 0 {
		if err := json.Unmarshal(request, &r); err != nil {
			return onpath.Errorf(onpath.CodeInvalid, "the request cannot be read: %w", err)
		}
	}
	return do(r)
}

func serveFlows(ctx context.Context, d onpath.Datapath, f onpath.FlowFilter, w io.Writer) error {
	enc := json.NewEncoder(w)
	var failed error
	err := d.Flows(ctx, f, func(e onpath.FlowEntry) bool {
		failed = enc.Encode(e)
		return failed == nil && ctx.Err() == nil
	})
	if failed != nil {
		return failed
	}
	return err
}

// look says what was counted and which entries there are, at once.
func (a *Agent) look(ctx context.Context, r onpath.LookRequest, w io.Writer) (err error) {
	var seen onpath.Look
	if seen.Counters, err = countersOf(ctx, a.opt.Datapath, a.punts); err != nil {
		return err
	}
	for _, f := range r.Flows {
		list := []onpath.FlowEntry{}
		err := a.opt.Datapath.Flows(ctx, f, func(e onpath.FlowEntry) bool {
			list = append(list, e)
			return len(list) < onpath.MaxLookFlows && ctx.Err() == nil
		})
		if err != nil {
			return err
		}
		seen.Flows = append(seen.Flows, list)
	}
	return json.NewEncoder(w).Encode(seen)
}

// capturable refuses the vport of an ebpf function, which only numbers it: no packet
// enters or leaves there, and a capture would write nothing for ever.
func (a *Agent) capturable(v onpath.VportID) error {
	for _, f := range a.instances.Facts() {
		if f.Plan.Vport == v && f.Plan.Spec.Inline() {
			e := onpath.Errorf(onpath.CodeUnsupported,
				"an ebpf function runs in the kernel, without an interface of its own: there is nothing to capture at")
			e.Remedy = "capture at the uplinks of its gateway, as an operator: onpath capture --node " + a.opt.Name + " -w FILE"
			return e
		}
	}
	return nil
}

// Usage is what each running instance has used, by tenant/name.
func (a *Agent) Usage(ctx context.Context) map[string]onpath.Usage {
	out := map[string]onpath.Usage{}
	for _, f := range a.instances.Facts() {
		if f.Process == nil {
			continue
		}
		if u, err := f.Process.Usage(ctx); err == nil { // one that just ended has none
			out[f.Name()] = u
		}
	}
	return out
}
