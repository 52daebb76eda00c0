package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/internal/sockets"
	"github.com/onpath/onpath/node/base"
	"github.com/onpath/onpath/node/wiring"
)

// creation makes an instance in its runtime, up to the start of its process: it prepares
// the image, and creates the container where the runtime can do that by itself. It runs
// beside the wiring of a new instance.
type creation struct {
	spec onpath.RunSpec // with the secrets, once they are read
	of   string         // hash of the spec as it was ordered
	done chan struct{}  // closed when the rest is valid
	// unprepared is why the image is not here.
	unprepared error
	made       onpath.Created // nil: the runtime starts in one step
	err        error          // why it could not be made
}

func newCreation(spec onpath.RunSpec) *creation {
	return &creation{spec: spec, of: base.Hash(spec), done: make(chan struct{})}
}

// preparing is the reason of an instance whose image is not here yet.
const preparing = "PreparingImage"

// maker makes instances in their runtimes.
type maker struct{ self }

// creationOf is what began ahead, if the plan is still the same, or begins now.
func (in *instance) creationOf(ctx context.Context, rt onpath.Runtime, plan onpath.InstancePlan) *creation {
	spec := maker{in.self}.runSpec(plan)
	if m := in.takeCreation(); m != nil {
		if m.of == base.Hash(spec) {
			return m
		}
		maker{in.self}.discard(m)
	}
	in.st.set(onpath.InstanceStarting, Cause{preparing, "preparing the image"})
	m := newCreation(spec)
	maker{in.self}.create(ctx, rt, m)
	return m
}

// createAhead begins a new instance before its devices are there. The runtime sets
// a function's own sysctls, and some are of devices: those wait.
func (in *instance) createAhead(ctx context.Context) {
	plan := in.current()
	t := plan.Spec.Traits()
	rt, err := in.runtime()
	if err != nil || t.Inline || len(t.Sysctls) > 0 || plan.Draining || in.rec.Started {
		return
	}
	if _, ok := rt.(onpath.Creator); !ok {
		return
	}
	anew, err := in.s.wirer.Namespace(wiring.Of(in.id, plan), 0)
	if err != nil {
		return // wire says why
	}
	if anew {
		in.namespaceReplacedFor(nil)
	}
	in.st.set(onpath.InstanceStarting, Cause{preparing, "preparing the image"})
	m := newCreation(maker{in.self}.runSpec(plan))
	in.creation = m
	in.s.part.Go(func(context.Context) { maker{in.self}.create(ctx, rt, m) })
}

func (in *instance) takeCreation() *creation {
	m := in.creation
	in.creation = nil
	return m
}

// create is not cut short by the agent's end once the image is here: the next
// agent finds the instance made or not, never half.
func (in maker) create(ctx context.Context, rt onpath.Runtime, m *creation) {
	defer close(m.done)
	progress := func(words string) {
		if _, lacks := in.st.wiring(); lacks == "" {
			in.st.set(onpath.InstanceStarting, Cause{preparing, "preparing the image: " + words})
		}
	}
	if m.unprepared = rt.Prepare(ctx, &m.spec.Spec, progress); m.unprepared != nil {
		return
	}
	if m.unprepared = in.readSecrets(ctx, m); m.unprepared != nil {
		return
	}
	if c, ok := rt.(onpath.Creator); ok {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		m.made, m.err = c.Create(ctx, m.spec)
	}
}

// readSecrets has the server give the instance's secrets, at each start: nothing here keeps
// them.
func (in maker) readSecrets(ctx context.Context, m *creation) (err error) {
	named := m.spec.Spec.Traits().Secrets
	if len(named) == 0 {
		return nil
	}
	refuse := func(err error) error {
		return onpath.Errorf(onpath.CodeUnavailable, "the server does not give its secrets: %w", err)
	}
	if in.s.opt.Secrets == nil {
		return refuse(errors.New("this node has no server"))
	}
	plan := in.current()
	ctx, cancel := context.WithTimeout(ctx, secretsPatience)
	defer cancel()
	if m.spec.Secrets, err = in.s.opt.Secrets(ctx, plan.Tenant, plan.Name); err != nil {
		return refuse(err)
	}
	for file := range named {
		if _, ok := m.spec.Secrets[file]; !ok {
			return refuse(fmt.Errorf("%s is not among them", file))
		}
	}
	return nil
}

// secretsPatience is how long the server may take to give secrets.
const secretsPatience = 10 * time.Second

// discard deletes what was made and is not to be started; m may be nil.
func (in maker) discard(m *creation) {
	if m == nil {
		return
	}
	if <-m.done; m.made == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := m.made.Discard(ctx); err != nil {
		in.s.part.Log.Error("cannot clear away what was made ahead", "instance", in.id, "err", err)
	}
}

func (in maker) runSpec(plan onpath.InstancePlan) onpath.RunSpec {
	return onpath.RunSpec{
		ID: in.id, Spec: paired(informed(plan.Spec, idleOf(&plan)), &plan), NetNS: in.s.part.Dir.NetNS(in.id), Hostname: plan.Name,
		Awaited: plan.OnDemand != nil && !plan.Spec.Inline(),
		Labels: map[string]string{
			LabelNode: in.s.part.Node, LabelState: string(in.s.part.Dir),
			LabelTenant: plan.Tenant, LabelDeployment: plan.Deployment, LabelInstance: plan.Name,
			LabelUID: plan.UID, LabelShape: shapeOf(plan.Spec),
		},
	}
}

// launch starts the process. Nor does the agent's end cut this short.
func (in maker) launch(ctx context.Context, rt onpath.Runtime, m *creation) (p onpath.Process, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	switch {
	case m.made != nil:
		p, err = m.made.Start(ctx)
	case m.err != nil:
		err = m.err
	default:
		p, err = rt.Start(ctx, m.spec)
	}
	if onpath.CodeOf(err) != onpath.CodeExists {
		return p, err
	}
	// Left by a start that was cut off; what it is cannot be known.
	found, aerr := rt.Adopt(ctx)
	if aerr != nil {
		return nil, errors.Join(err, aerr)
	}
	if old, ok := found[in.id]; ok {
		if serr := old.Stop(ctx, 0); serr != nil {
			return nil, errors.Join(err, serr)
		}
	}
	return nil, err
}

// inside is what is done in an instance's network namespace.
type inside struct{ self }

// endLeft ends the connections of a process that has ended, which stay in the instance's
// namespace: the kernel goes on sending what the process had left and that it is over,
// minutes long. The other end may have another connection by the same ports by then; and
// a new one that came here by them would meet the old one.
func (in inside) endLeft() {
	path := in.s.part.Dir.NetNS(in.id)
	if sockets.Possible() != nil || !netnsrun.Is(path) { // doctor says so
		return
	}
	err := netnsrun.Do(path, func() error {
		_, err := sockets.End()
		return err
	})
	if err != nil {
		in.s.part.Log.Warn("connections of a process that has ended stay", "instance", in.id, "err", err)
	}
}
