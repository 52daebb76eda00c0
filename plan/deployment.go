package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/onpath/onpath"
)

// addDeployments takes up the deployments that are objects; those of chains'
// short forms come with the chains.
func (w *resolver) addDeployments() {
	for _, o := range listed[*onpath.Deployment](w.world) {
		d := &deployment{key: nameOf(o), obj: o, place: o.Spec.Place, drain: time.Duration(o.Spec.Drain), in: map[string]bool{}}
		d.want = w.instancesWanted(d.key, o.Spec.Instances)
		d.fnName = resolve(o.Spec.Function, d.key.tenant)
		d.function, _ = lookUp[*onpath.Function](w.world, onpath.KindFunction, d.fnName)
		if d.function != nil && !mayUse(d.function, d.key.tenant) {
			d.function = nil
		}
		d.reserve(w.world, o.Spec.Reservation)
		w.complete(d, o.Spec.Env, o.Spec.Files)
		for _, c := range o.Spec.Place.Cloudlets {
			d.in[c] = true
		}
		if d.runs() {
			d.in = map[string]bool{d.res.cloudlet: true}
		}
		w.deployments[d.key] = d
	}
}

// instancesWanted is how many instances a deployment has in each cloudlet: what the snapshot says
// of it, else what its specification says, else one.
func (w *resolver) instancesWanted(d name, spec *int) int {
	if n, ok := w.Wanted[onpath.Key{Kind: onpath.KindDeployment, Tenant: d.tenant, Name: d.name}]; ok {
		return min(max(n, 0), onpath.MaxMembers)
	}
	if spec != nil {
		return *spec
	}
	return 1
}

// mayUse reports whether a tenant may run the function.
func mayUse(f *onpath.Function, tenant string) bool {
	return f.Spec.Shared || nameOf(f).tenant == tenant
}

// shortForm is the deployment that element e of the chain makes.
func (w *resolver) shortForm(c *chain, e *onpath.Element) *deployment {
	d := &deployment{
		key:   name{c.key.tenant, onpath.ShortDeployment(c.key.name, e.Function)},
		place: e.Place, owner: c, in: map[string]bool{}, drain: time.Duration(onpath.DefaultDrain),
	}
	d.want = w.instancesWanted(d.key, e.Instances)
	if e.Drain != 0 {
		d.drain = time.Duration(e.Drain)
	}
	d.fnName = resolve(e.Function, c.key.tenant)
	d.function, _ = lookUp[*onpath.Function](w.world, onpath.KindFunction, d.fnName)
	d.reserve(w.world, e.Reservation)
	w.complete(d, e.Env, e.Files)
	d.pairs(c, e)
	return d
}

// complete merges the function's part of the specification with the
// deployment's own, which wins.
func (w *resolver) complete(d *deployment, env onpath.Env, files map[string]onpath.File) {
	if d.function == nil {
		return
	}
	defer w.keepSecrets(d)
	if len(env)+len(files) > 0 {
		d.functionOf = functionAsRun(d.function, d.fnName, env, files)
		d.sized()
		return
	}
	f, ok := w.asIs[d.function]
	if !ok {
		f = functionAsRun(d.function, d.fnName, nil, nil)
		w.asIs[d.function] = f
	}
	d.functionOf = f
	d.sized()
}

// functionOf is a function as instances of a deployment run it.
type functionOf struct {
	spec   onpath.FunctionSpec // function's and deployment's merged
	shape  string
	traits onpath.FunctionTraits
}

func functionAsRun(f *onpath.Function, n name, env onpath.Env, files map[string]onpath.File) functionOf {
	running := f.Running()
	spec := running.With(env, files)
	return functionOf{spec, spec.Shape(n.String()), spec.Traits()}
}

// inline reports whether the deployment's function is run by the data path
// itself.
func (d *deployment) inline() bool { return d.traits.Inline }

// hash stands for the content of v.
func hash(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("plan: hash: " + err.Error()) // all that is hashed marshals
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

func (d *deployment) attach() onpath.ContainerAttach { return d.traits.Attach }

func (d *deployment) addressing() onpath.Addressing { return d.traits.Addresses }
