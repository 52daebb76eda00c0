package translog

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/plan/ownership"
)

// view is the store as it is once changes are written.
type view struct {
	*Store
	changed map[onpath.Key]onpath.Object
	whole   bool             // changed has all objects that an entry may need
	titles  *ownership.Table // made when it is first asked for
}

// sameTraffic reports whether two interceptions are of the same packets, by the same title
// and functions.
func sameTraffic(a, b onpath.LogEntry) bool {
	return slices.Equal(a.Prefixes, b.Prefixes) && a.Method == b.Method && slices.Equal(a.Functions, b.Functions)
}

// edited tells which interceptions become others by a change of what their chains name,
// and notes them in next.
func (v *view) edited(ctx context.Context, k onpath.Key, next map[onpath.Key]*held) (out []onpath.LogEntry) {
	list := map[onpath.Key]held{}
	var keys []onpath.Key
	v.mu.Lock()
	for name, h := range v.held {
		if _, changes := v.changed[name]; !changes && next[name] == nil && len(h.cloudlets) > 0 && h.names(k) {
			list[name], keys = h, append(keys, name)
		}
	}
	v.mu.Unlock()
	slices.SortFunc(keys, func(a, b onpath.Key) int { return strings.Compare(a.String(), b.String()) })
	for _, name := range keys {
		h := list[name]
		e, now := h.begun, v.interception(ctx, h.chain)
		if sameTraffic(e, now) {
			continue
		}
		next[name] = &held{begun: now, same: true}
		e.What, e.Cloudlets = onpath.LogEnd, h.cloudlets
		now.What, now.Cloudlets = onpath.LogBegin, h.cloudlets
		out = append(out, e, now)
	}
	return out
}

// names reports whether a chain, or a deployment that it names, names an object.
func (h *held) names(k onpath.Key) bool {
	if h.chain == nil {
		return false
	}
	is := func(r onpath.Ref) bool {
		t, n := r.Resolve(h.chain.Metadata.Tenant)
		return r != "" && t == k.Tenant && n == k.Name
	}
	switch k.Kind {
	case onpath.KindHosts:
		return is(h.chain.Spec.From.Hosts) || is(h.chain.Spec.To.Hosts)
	case onpath.KindDeployment:
		return slices.ContainsFunc(h.chain.Spec.Through, func(e onpath.Element) bool { return is(e.Deployment) })
	}
	return slices.ContainsFunc(h.begun.Functions, func(f string) bool {
		name, _, _ := strings.Cut(f, "@")
		return name == k.Tenant+"/"+k.Name
	})
}

// interception is whose packets a chain takes and what they pass.
func (v *view) interception(ctx context.Context, c *onpath.Chain) onpath.LogEntry {
	tenant := c.Metadata.Tenant
	e := onpath.LogEntry{Tenant: tenant, Object: onpath.KeyOf(c).String(), Prefixes: v.prefixes(ctx, c)}
	e.Method = v.method(tenant, e.Prefixes)
	for _, el := range c.Spec.Through {
		f := el.Function
		if el.Deployment != "" {
			t, n := el.Deployment.Resolve(tenant)
			if d, _ := v.get(ctx, onpath.Key{Kind: onpath.KindDeployment, Tenant: t, Name: n}).(*onpath.Deployment); d != nil {
				f = d.Spec.Function
			}
		}
		t, n := f.Resolve(tenant)
		text := t + "/" + n
		if o := v.get(ctx, onpath.Key{Kind: onpath.KindFunction, Tenant: t, Name: n}); o != nil {
			text += "@hmac-sha256:" + v.publicHash(o)
		}
		e.Functions = append(e.Functions, text)
	}
	return e
}

// lease tells where a leased module begins and ceases to intercept.
func (v *view) lease(ctx context.Context, ch onpath.Change) (out []onpath.LogEntry, next *held) {
	was := v.known(ch.Key)
	if l, _ := ch.Object.(*onpath.Lease); l != nil {
		if next = v.leased(ctx, l); len(was.cloudlets) > 0 && sameTraffic(was.begun, next.begun) {
			return nil, next // prolonged
		}
	}
	if len(was.cloudlets) > 0 {
		e := was.begun
		e.What, e.Cloudlets = onpath.LogEnd, was.cloudlets
		out = append(out, e)
	}
	if next != nil {
		e := next.begun
		e.What, e.Cloudlets = onpath.LogBegin, next.cloudlets
		out = append(out, e)
	}
	return out, next
}

// leased is whose packets a module takes. A publisher who is no tenant has proved by a
// password what they come from or go to.
func (v *view) leased(ctx context.Context, l *onpath.Lease) *held {
	s := &l.Spec
	module := s.Publisher + "/" + s.Module
	e := onpath.LogEntry{Object: onpath.KeyOf(l).String(), Prefixes: s.To, Method: onpath.ByPassword,
		Functions: []string{module + "@hmac-sha256:" + v.keyed("module "+module, s.SHA256)}}
	if s.Known {
		e.Tenant, e.Method = s.Publisher, v.method(s.Publisher, s.To)
	}
	cloudlet := s.Node
	if n, _ := v.get(ctx, onpath.Key{Kind: onpath.KindNode, Name: s.Node}).(*onpath.Node); n != nil {
		cloudlet = n.Spec.Cloudlet
	}
	return &held{cloudlets: []string{cloudlet}, begun: e}
}

// publicHash tells specifications of functions apart for everybody, and shows nothing of
// them.
func (s *Store) publicHash(o onpath.Object) string {
	return s.keyed(onpath.KeyOf(o).String(), specHash(o))
}

func (s *Store) keyed(name, hash string) string {
	h := hmac.New(sha256.New, s.salt)
	h.Write([]byte("onpath log " + name + "\x00" + hash))
	return hex.EncodeToString(h.Sum(nil))
}

func (v *view) get(ctx context.Context, k onpath.Key) onpath.Object {
	if o, ok := v.changed[k]; ok {
		return o
	}
	if v.whole {
		return nil
	}
	o, err := v.Store.Get(ctx, k)
	if err != nil {
		return nil
	}
	return o
}

// anybody's are the prefixes of chains from any to any.
var anybodys = []onpath.Prefix{{Prefix: netip.MustParsePrefix("0.0.0.0/0")}, {Prefix: netip.MustParsePrefix("::/0")}}

// prefixes are both ends of a chain, but one that is any.
func (v *view) prefixes(ctx context.Context, c *onpath.Chain) (out []onpath.Prefix) {
	for _, e := range []onpath.Endpoints{c.Spec.From, c.Spec.To} {
		out = append(out, e.Prefixes...)
		if e.Hosts == "" {
			continue
		}
		t, n := e.Hosts.Resolve(c.Metadata.Tenant)
		h, _ := v.get(ctx, onpath.Key{Kind: onpath.KindHosts, Tenant: t, Name: n}).(*onpath.Hosts)
		if h == nil {
			continue
		}
		out = append(append(out, h.Spec.Addresses...), h.Spec.Virtual...)
		if m, _ := v.get(ctx, onpath.Key{Kind: onpath.KindNode, Name: h.Spec.Node}).(*onpath.Node); h.Spec.Node != "" && m != nil {
			for _, a := range m.Status.Addresses {
				out = append(out, onpath.Prefix{Prefix: netip.PrefixFrom(a, a.BitLen())})
			}
		}
	}
	if len(out) == 0 && c.Spec.From.Deployment == "" {
		return anybodys
	}
	const most = 200 // an entry has room for so many
	return out[:min(len(out), most)]
}

// method is how a tenant has proved that it may take what comes from or goes to prefixes.
func (v *view) method(tenant string, prefixes []onpath.Prefix) onpath.ClaimMethod {
	if v.titles == nil {
		v.titles = ownership.New(v.withTitles(v.changed), v.clock())
	}
	for _, p := range prefixes {
		if h, ok := v.titles.Covering(tenant, p.Prefix); ok {
			return h.Method
		}
	}
	return onpath.ByOperator
}
