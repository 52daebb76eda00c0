package node_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/node"
	"github.com/onpath/onpath/runtime/fake"
)

// tellable is a runtime of functions that refuse rules with the word "tcq".
type tellable struct{ *fake.Runtime }

func (r tellable) Start(ctx context.Context, s onpath.RunSpec) (onpath.Process, error) {
	rules := s.Spec.EBPF.Config["rules"]
	s.Spec.Container = &onpath.ContainerSpec{Command: []string{"run"}} // all that the fake runtime runs
	p, err := r.Runtime.Start(ctx, s)
	return tellableProcess{p, rules}, err
}

func (r tellable) Create(ctx context.Context, s onpath.RunSpec) (onpath.Created, error) {
	return tellableCreated{r, s}, nil
}

type tellableCreated struct {
	r tellable
	s onpath.RunSpec
}

func (c tellableCreated) Start(ctx context.Context) (onpath.Process, error) {
	return c.r.Start(ctx, c.s)
}
func (c tellableCreated) Discard(context.Context) error { return nil }

type tellableProcess struct {
	onpath.Process
	rules string // by which it was started
}

func (p tellableProcess) Lacks() error { return refusal(p.rules) }

func refusal(rules string) error {
	if strings.Contains(rules, "tcq") {
		return onpath.Errorf(onpath.CodeInvalid, `rules: line 1: "tcq" is no protocol`)
	}
	return nil
}

func (tellableProcess) Reconfigure(_ context.Context, s *onpath.FunctionSpec) error {
	return refusal(s.EBPF.Config["rules"])
}

// TestConfigRefused: reports say what a function was told last, or was started with, and that
// it did not take it, until it takes what it is told.
func TestConfigRefused(t *testing.T) {
	b := newFixture(t)
	b.edit = func(o *node.Options) { o.Runtimes[onpath.EBPFFunction] = tellable{fake.New(b.machine)} }
	r := b.run()
	generation := uint64(0)
	tell := func(rules string) string {
		generation++
		in := routed("fw", 16)
		in.Spec = onpath.FunctionSpec{EBPF: &onpath.EBPFSpec{Object: "firewall", Config: onpath.Env{"rules": rules}}}
		r.plan(planOf(generation, in))
		return in.Spec.Told()
	}
	await := func(told, refused string) {
		t.Helper()
		b.until("the report says what it was told, and refused "+refused, func() bool {
			got, ok := r.server.instance("fw")
			return ok && got.Config == told && (got.Refused != "") == (refused != "") && strings.Contains(got.Refused, refused) &&
				(got.State != onpath.InstanceReady || strings.Contains(got.Message, refused))
		})
	}
	await(tell("drop tcq"), `"tcq" is no protocol`)
	await(tell("drop udp"), "")
	await(tell("drop tcq"), `"tcq" is no protocol`)
	b.until("an event says so", func() bool { return slices.Contains(r.server.reasons(), "ConfigRefused") })
	await(tell("drop udp"), "") // as it runs
	await(tell("drop tcq"), `"tcq" is no protocol`)
	await(tell("drop tcp"), "")
}
