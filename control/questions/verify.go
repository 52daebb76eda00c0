package questions

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan"
	"github.com/onpath/onpath/plan/verify"
)

// Verify proves or refutes on the newest plans of all nodes, or on those that
// they have acknowledged, what chains promise.
func Verify(ctx context.Context, w World, r onpath.VerifyRequest) (*onpath.Verification, error) {
	s, silent := w.Snapshot, w.Silent
	if r.Tenant != "" && len(r.Chains) == 0 {
		if r.Chains = chainsOf(s, r.Tenant); len(r.Chains) == 0 {
			return &onpath.Verification{Live: r.Live, Verdict: onpath.VerdictProved, Chains: []onpath.ChainVerification{}}, nil
		}
	}
	for _, name := range r.Chains {
		tenant, n, _ := strings.Cut(name, "/")
		if s.Objects[onpath.Key{Kind: onpath.KindChain, Tenant: tenant, Name: n}] == nil || r.Tenant != "" && tenant != r.Tenant {
			e := onpath.Errorf(onpath.CodeNotFound, "there is no chain %s", name)
			e.Remedy = "onpath get chains lists what there is"
			return nil, e
		}
	}
	plans := s.Latest()
	if r.Live {
		plans = s.InForce()
	}
	in := verify.Input{Now: s.Now, Objects: s.Objects, Plans: plans, Chains: r.Chains, Unsteered: unsteered(s)}
	if r.Live {
		in.NoReport = noReport(s, silent)
	}
	p := prove(in)
	p.Live = r.Live
	if p.Rest != nil {
		p.Rest.Notes = append(p.Rest.Notes, lent(s)...)
	}
	p.Notes = append(p.Notes, behind(s, r.Live)...)
	p.Notes = append(p.Notes, hearsay(s, silent)...)
	return p, ctx.Err()
}

// lent says which traffic that no chain selects is not left alone: nodes put rules of leases
// behind those of chains by themselves, so these are in no plan that is proved.
func lent(s *plan.Snapshot) []string {
	count := map[[2]string]int{}
	for node, st := range s.States { // also those that are not believed: some module is there
		if st.Report == nil {
			continue
		}
		for i := range st.Report.Leases {
			if l := &st.Report.Leases[i]; l.Vport != 0 {
				count[[2]string{node, l.Publisher}]++
			}
		}
	}
	for _, o := range s.Objects {
		l, ok := o.(*onpath.Lease)
		if !ok || l.Spec.Vport == 0 {
			continue
		}
		if st := s.States[l.Spec.Node]; st == nil || st.Report == nil {
			count[[2]string{l.Spec.Node, l.Spec.Publisher}]++
		}
	}
	var out []string
	for at, n := range count {
		out = append(out, fmt.Sprintf(
			"not checked: what leased modules of publisher %s (%d) do at node %s with packets that no chain selects", at[1], n, at[0]))
	}
	slices.Sort(out)
	return out
}

// planned is what is proved of a snapshot whose nodes all have done their part.
func planned(s *plan.Snapshot) verify.Input {
	return verify.Input{Now: s.Now, Objects: s.Objects, Plans: s.InForce()}
}

func prove(in verify.Input) *onpath.Verification {
	began := time.Now()
	p := verify.Check(in)
	p.Took = onpath.Duration(time.Since(began))
	return p
}

func chainsOf(s *plan.Snapshot, tenant string) (out []string) {
	for k := range s.Objects {
		if k.Kind == onpath.KindChain && k.Tenant == tenant {
			out = append(out, tenant+"/"+k.Name)
		}
	}
	slices.Sort(out)
	return out
}

// behind says which nodes have not acknowledged their newest plan.
func behind(s *plan.Snapshot, live bool) (out []string) {
	for n, st := range s.States {
		if len(st.Sent) == 0 {
			continue
		}
		in := uint64(0)
		if st.Acked != nil {
			in = st.Acked.Generation
		}
		text := fmt.Sprintf("node %s has plan %d in force and has not acknowledged plan %d", n, in, st.Sent[len(st.Sent)-1].Generation)
		if !live {
			text += "; --live looks at what is in force"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

// hearsay says of which nodes nothing newer is known than what they acknowledged last.
func hearsay(s *plan.Snapshot, silent map[string]string) (out []string) {
	for n, why := range silent {
		if st := s.States[n]; st != nil && st.Acked != nil {
			out = append(out, fmt.Sprintf("node %s: %s, and has plan %d in force by its last word", n, why, st.Acked.Generation))
		}
	}
	slices.Sort(out)
	return out
}

// unsteered are the uplinks that nodes do not steer, by their last word.
func unsteered(s *plan.Snapshot) map[string][]onpath.Condition {
	out := map[string][]onpath.Condition{}
	for n, st := range s.States {
		if st.Report != nil {
			out[n] = onpath.Unsteered(st.Report.Conditions)
		}
	}
	return out
}

// noReport says of nodes without a session why what they have in force is not known,
// and whether their peers reach them at least. A data path that answers may have been
// told something else meanwhile, so that proves nothing.
func noReport(s *plan.Snapshot, silent map[string]string) map[string]string {
	out := map[string]string{}
	for n, why := range silent {
		for _, peer := range slices.Sorted(maps.Keys(s.States)) {
			if r := s.States[peer].Report; silent[peer] == "" && r != nil && slices.Contains(r.Unreachable, n) {
				why += ", and node " + peer + " does not reach it either"
				break
			}
		}
		out[n] = why
	}
	return out
}

// steering are the kinds on which rules depend.
var steering = []onpath.Kind{onpath.KindChain, onpath.KindHosts, onpath.KindFunction, onpath.KindDeployment, onpath.KindNode,
	onpath.KindCloudlet}

// Steers reports whether rules depend on what is changed.
func Steers(changes []onpath.Change) bool {
	return slices.ContainsFunc(changes, func(ch onpath.Change) bool { return slices.Contains(steering, ch.Key.Kind) })
}

// VerifyChange proves what would follow from changes once every node has done
// its part. What is refuted without them too does not count.
func VerifyChange(ctx context.Context, log *slog.Logger, before, after *plan.Snapshot) error {
	began := time.Now()
	p := prove(planned(plan.Foresee(after)))
	log.Debug("a change is verified", "verdict", p.Verdict, "classes", p.Classes, "proof", time.Duration(p.Took), "all", time.Since(began))
	if p.Verdict != onpath.VerdictRefuted || ctx.Err() != nil {
		return ctx.Err()
	}
	known := map[string]bool{}
	for _, r := range refuted(prove(planned(plan.Foresee(before)))) {
		known[r.Chain] = true
	}
	var errs onpath.Errors
	for _, r := range refuted(p) {
		if !known[r.Chain] {
			errs = append(errs, refutation(r))
		}
	}
	return errs.Err()
}

func refuted(p *onpath.Verification) (out []onpath.ChainVerification) {
	for _, r := range p.Chains {
		if r.Verdict == onpath.VerdictRefuted {
			out = append(out, r)
		}
	}
	if p.Rest != nil && p.Rest.Verdict == onpath.VerdictRefuted {
		out = append(out, *p.Rest)
	}
	return out
}

// refutation is the error of a chain that would not keep its promise.
func refutation(r onpath.ChainVerification) *onpath.Error {
	x := r.Counterexample
	e := onpath.Errorf(onpath.CodeInternal, "the rules that would follow lead a flow astray, which is a fault of onpath's: "+
		"protocol %d from %s port %d to %s port %d, starting at %s, %s at node %s (promised: %s)", x.Tuple.Protocol, x.Tuple.Src,
		x.Tuple.SrcPort, x.Tuple.Dst, x.Tuple.DstPort, x.Entry, x.Message, x.At, strings.Join(x.Promised, " → "))
	e.Remedy = "nothing was changed; please report it with your files; --no-verify applies them all the same"
	if r.Chain != "" {
		tenant, name, _ := strings.Cut(r.Chain, "/")
		e.Object = onpath.Key{Kind: onpath.KindChain, Tenant: tenant, Name: name}.String()
	}
	return e
}
