package translog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/control/translog/tlogtiles"
	"github.com/onpath/onpath/store"
	"github.com/onpath/onpath/store/mem"
)

func entry(i int) onpath.LogEntry {
	e := onpath.LogEntry{What: onpath.LogChange, Tenant: fmt.Sprintf("t%d", i%3), Object: fmt.Sprintf("chain t/%d", i), Message: "changed"}
	if i%2 == 0 {
		e.What = onpath.LogClaim
	}
	return e
}

func openLog(t *testing.T, dir string) *Log {
	t.Helper()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func newStore(t *testing.T, s onpath.Store) *Store {
	t.Helper()
	out, err := NewStore(t.Context(), s, time.Now, []byte("salt"))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// reader reads a log as a stranger does.
func reader(t *testing.T, l *Log) *tlogtiles.Reader {
	t.Helper()
	v, err := note.NewVerifier(l.Key())
	if err != nil {
		t.Fatal(err)
	}
	return &tlogtiles.Reader{Verifier: v, Fetch: func(path string) ([]byte, error) {
		if path == "checkpoint" {
			return l.Checkpoint(), nil
		}
		return l.Tile(path)
	}}
}

func fill(t *testing.T, l *Log, s *Store, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		if err := s.Note(t.Context(), entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Take(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// TestMutations: every changed octet, dropped entry and fork is found by who kept an older
// checkpoint, or reads all of it.
func TestMutations(t *testing.T) {
	dir := t.TempDir()
	l := openLog(t, dir)
	s := newStore(t, mem.New(mem.Options{}))
	fill(t, l, s, 0, 300)
	r := reader(t, l)
	kept, _, err := r.Checkpoint()
	if err != nil || kept.N != 300 {
		t.Fatal(kept, err)
	}
	fill(t, l, s, 300, 333)
	whole := func(l *Log) error {
		r := reader(t, l)
		now, _, err := r.Checkpoint()
		return errors.Join(err, r.Continues(kept, now), r.Root(now), l.Audit("", 10_000, func(onpath.LoggedEntry) error { return nil }))
	}
	if err := whole(l); err != nil {
		t.Fatalf("untouched: %v", err)
	}
	files := map[string][]byte{}
	for _, name := range []string{"entries", "hashes", "key"} {
		if files[name], err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const rounds = 50
	found := 0
	for round := range rounds {
		bad := t.TempDir()
		what := mutate(rng, round, files, bad)
		b, err := Open(bad)
		if err != nil {
			found++ // it cannot even be served
			continue
		}
		if err := whole(b); err == nil {
			t.Errorf("round %d: %s is not found", round, what)
		} else {
			found++
		}
		_ = b.Close()
	}
	if found != rounds {
		t.Errorf("%d of %d are found", found, rounds)
	}
}

// mutate writes a log that somebody with all its files and its key has tampered with.
func mutate(rng *rand.Rand, round int, files map[string][]byte, dir string) (what string) {
	out := map[string][]byte{}
	for name, b := range files {
		out[name] = bytes.Clone(b)
	}
	lines := bytes.SplitAfter(out["entries"], []byte("\n"))
	lines = lines[:len(lines)-1]
	n := rng.IntN(300) // among those that were seen
	switch round % 5 {
	case 0: // a byte of a leaf, hashes left alone
		i := bytes.Index(lines[n], []byte(`"leaf":"`)) + 12 + rng.IntN(8)
		lines[n] = bytes.Clone(lines[n])
		lines[n][i] ^= 1
		what = fmt.Sprintf("entry %d changed", n)
	case 1: // the same, with hashes computed anew
		lines[n] = bytes.Replace(lines[n], []byte(`chain`), []byte(`chaim`), 1)
		if !bytes.Contains(lines[n], []byte("chaim")) {
			lines[n] = bytes.Replace(lines[n], []byte(`sha256\":\"`), []byte(`sha256\":\"0`), 1)
		}
		out["hashes"] = nil
		what = fmt.Sprintf("entry %d changed, and signed anew", n)
	case 2:
		lines = append(lines[:n:n], lines[n+1:]...)
		what = fmt.Sprintf("entry %d dropped", n)
	case 3: // the end is taken back
		lines = lines[:n]
		what = fmt.Sprintf("only %d entries left", n)
	case 4: // a hash of those that are served
		out["hashes"][tlog.StoredHashIndex(0, int64(n))*tlog.HashSize+rng.Int64N(tlog.HashSize)] ^= 1
		what = "a hash changed"
	}
	out["entries"] = bytes.Join(lines, nil)
	for name, b := range out {
		_ = os.WriteFile(filepath.Join(dir, name), b, 0o600)
	}
	return what
}

// TestNothingLost: what was acknowledged is in the log, once, whenever the server dies.
func TestNothingLost(t *testing.T) {
	inner := mem.New(mem.Options{})
	dir := t.TempDir()
	ctx := t.Context()
	want := map[string]bool{}
	for round := range 20 {
		s := newStore(t, inner)
		l := openLog(t, dir)
		if err := l.Continue(ctx, s); err != nil {
			t.Fatal(err)
		}
		for i := range 7 {
			e := entry(100*round + i)
			if err := s.Note(ctx, e); err != nil {
				t.Fatal(err)
			}
			want[e.Object] = true
		}
		list, err := waiting(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		var lines []line
		for _, r := range list {
			more, err := linesOf(r)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, more...)
		}
		switch round % 4 {
		case 0: // dies before anything
		case 1: // when the log has a part, and the store has not heard of it
			err = l.append(lines[:len(lines)/2])
		case 2: // in the middle of a line
			if err = l.append(lines); err == nil {
				_, err = l.entries.WriteAt([]byte(`{"id":"x","le`), l.at[len(l.at)-1])
			}
		case 3:
			err = l.Take(ctx, s)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
	s, l := newStore(t, inner), openLog(t, dir)
	if err := errors.Join(l.Continue(ctx, s), l.Take(ctx, s)); err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	if err := l.Audit("", 100_000, func(e onpath.LoggedEntry) error { got[e.Object]++; return nil }); err != nil {
		t.Fatal(err)
	}
	for o := range want {
		if got[o] != 1 {
			t.Errorf("%s is in the log %d times", o, got[o])
		}
	}
	r := reader(t, l)
	now, _, err := r.Checkpoint()
	if err := errors.Join(err, r.Root(now)); err != nil || now.N != int64(len(want)) {
		t.Errorf("%d entries of %d: %v", now.N, len(want), err)
	}
}

// TestOtherFiles: a server whose folder is not the one that was signed last signs nothing.
func TestOtherFiles(t *testing.T) {
	s := newStore(t, mem.New(mem.Options{}))
	l := openLog(t, t.TempDir())
	fill(t, l, s, 0, 10)
	other := openLog(t, t.TempDir())
	if err := other.Continue(t.Context(), s); err == nil {
		t.Error("a log with another key goes on")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := other.Run(ctx, s, slog.New(slog.DiscardHandler)); err != nil || other.Checkpoint() != nil {
		t.Errorf("it is signed: %v", err)
	}
}

func applied(t *testing.T, o onpath.Object, change func(onpath.Object)) onpath.Object {
	t.Helper()
	if change != nil {
		change(o)
	}
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestEntries: a change, an interception and a claim leave their entries; tenants read
// their own, and strangers of the others the hash alone.
func TestEntries(t *testing.T) {
	s := newStore(t, mem.New(mem.Options{}))
	l := openLog(t, t.TempDir())
	ctx := store.By(t.Context(), "onpath:user/acme/ann")
	n := 1
	c := applied(t, &onpath.Chain{Metadata: onpath.Metadata{Name: "web", Tenant: "acme"}, Spec: onpath.ChainSpec{
		From: onpath.Endpoints{Any: true}, To: onpath.Endpoints{Prefixes: []onpath.Prefix{prefix(t, "198.51.100.10")}},
		Through: []onpath.Element{{Function: "fw", Instances: &n}}}}, nil).(*onpath.Chain)
	write := func(ctx context.Context, o onpath.Object, k onpath.Key, version int64) {
		t.Helper()
		if _, err := s.Write(ctx, onpath.Batch{Changes: []onpath.Change{{Key: k, Object: o, Version: version}}}); err != nil {
			t.Fatal(err)
		}
	}
	key := onpath.KeyOf(c)
	write(ctx, c, key, 0)
	began := onpath.Clone(c)
	began.Status.Cloudlets = []string{"fra1"}
	decided := store.FollowUp(t.Context())
	write(decided, began, key, onpath.AnyVersion)
	write(decided, onpath.Clone(began), key, onpath.AnyVersion) // no news
	ended := onpath.Clone(began)
	ended.Status.Cloudlets = nil
	write(decided, ended, key, onpath.AnyVersion)
	write(ctx, nil, key, onpath.AnyVersion)
	if err := l.Take(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	var all []string
	read := func(tenant string) (out []string) {
		if err := l.Audit(tenant, 100, func(e onpath.LoggedEntry) error {
			out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %v %v", e.What, e.By, e.Prefixes, e.Cloudlets)))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	all = read("acme")
	want := "change onpath:user/acme/ann [] []|begin  [198.51.100.10] [fra1]|end  [198.51.100.10] [fra1]|change onpath:user/acme/ann [] []"
	if got := strings.Join(all, "|"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := read("bob"); len(got) > 0 {
		t.Errorf("bob reads %v", got)
	}
	r := reader(t, l)
	now, _, err := r.Checkpoint()
	if err != nil {
		t.Fatal(err)
	}
	seen := ""
	if err := r.Each(now, 0, func(_ int64, b []byte) error { seen += string(b) + "\n"; return nil }); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(seen, "ann") || strings.Count(seen, "198.51.100.10") != 2 || strings.Count(seen, `{"sha256":`) != 2 {
		t.Errorf("strangers read\n%s", seen)
	}
}

func prefix(t *testing.T, s string) (p onpath.Prefix) {
	t.Helper()
	if err := p.UnmarshalText([]byte(s)); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestEdits: what an interception or a claim becomes by an edit is told like what is new,
// though the chain is where it was.
func TestEdits(t *testing.T) {
	s := newStore(t, mem.New(mem.Options{}))
	l := openLog(t, t.TempDir())
	user, decided := store.By(t.Context(), "onpath:user/acme/ann"), store.FollowUp(t.Context())
	write := func(ctx context.Context, o onpath.Object, version int64) {
		t.Helper()
		b := onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(o), Object: onpath.Clone(o), Version: version}}}
		if _, err := s.Write(ctx, b); err != nil {
			t.Fatal(err)
		}
	}
	n := 1
	h := applied(t, &onpath.Hosts{Metadata: onpath.Metadata{Name: "h", Tenant: "acme"},
		Spec: onpath.HostsSpec{Addresses: []onpath.Prefix{prefix(t, "10.0.0.1")}}}, nil).(*onpath.Hosts)
	c := applied(t, &onpath.Chain{Metadata: onpath.Metadata{Name: "web", Tenant: "acme"}, Spec: onpath.ChainSpec{
		From: onpath.Endpoints{Hosts: "h"}, To: onpath.Endpoints{Prefixes: []onpath.Prefix{prefix(t, "198.51.100.10")}},
		Through: []onpath.Element{{Function: "fw", Instances: &n}}}}, nil).(*onpath.Chain)
	write(user, h, 0)
	write(user, c, 0)
	c.Status.Cloudlets = []string{"fra1"}
	write(decided, c, onpath.AnyVersion)
	c.Spec.Priority = 7 // the same packets
	write(user, c, onpath.AnyVersion)
	c.Spec.To.Prefixes[0] = prefix(t, "203.0.113.1")
	write(user, c, onpath.AnyVersion)
	h.Spec.Addresses[0] = prefix(t, "10.0.0.2")
	write(user, h, onpath.AnyVersion)
	c.Status.Cloudlets = nil
	write(decided, c, onpath.AnyVersion)

	p := applied(t, &onpath.PrefixClaim{Metadata: onpath.Metadata{Name: "site", Tenant: "acme"},
		Spec: onpath.PrefixClaimSpec{Prefix: prefix(t, "192.0.2.1"), Method: onpath.ByPassword}}, nil).(*onpath.PrefixClaim)
	write(user, p, 0)
	p.Status.State, p.Status.Prefix = onpath.ClaimProved, p.Spec.Prefix
	write(decided, p, onpath.AnyVersion)
	p.Spec.Prefix = prefix(t, "192.0.2.2")
	write(user, p, onpath.AnyVersion)
	if _, err := s.Write(user, onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(p), Version: onpath.AnyVersion}}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Take(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := l.Audit("acme", 100, func(e onpath.LoggedEntry) error {
		if e.Public() {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %v %v", e.What, e.State, e.Prefixes, e.Cloudlets)))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"begin  [10.0.0.1 198.51.100.10] [fra1]",
		"end  [10.0.0.1 198.51.100.10] [fra1]", "begin  [10.0.0.1 203.0.113.1] [fra1]",
		"end  [10.0.0.1 203.0.113.1] [fra1]", "begin  [10.0.0.2 203.0.113.1] [fra1]",
		"end  [10.0.0.2 203.0.113.1] [fra1]",
		"claim asked [192.0.2.1] []", "claim proved [192.0.2.1] []",
		"claim lost [192.0.2.1] []", "claim asked [192.0.2.2] []", "claim lost [192.0.2.2] []",
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

// TestLeases: what a leased module takes is told once, whatever is said of it meanwhile, also
// by a server that starts anew; a publisher who is no tenant is not called one.
func TestLeases(t *testing.T) {
	inner := mem.New(mem.Options{})
	s := newStore(t, inner)
	l := openLog(t, t.TempDir())
	decided := store.FollowUp(t.Context())
	write := func(o onpath.Object, version int64) {
		t.Helper()
		if _, err := s.Write(decided, onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(o), Object: onpath.Clone(o), Version: version}}}); err != nil {
			t.Fatal(err)
		}
	}
	node := &onpath.Node{Metadata: onpath.Metadata{Name: "gw1"}, Spec: onpath.NodeSpec{Cloudlet: "fra1"}}
	node.Spec.Underlay.Address = netip.MustParseAddr("192.0.2.7")
	write(applied(t, node, nil), 0)
	lease := &onpath.Lease{Metadata: onpath.Metadata{Name: "gw1-1", Tenant: "acme"}, Spec: onpath.LeaseSpec{Node: "gw1", Publisher: "acme",
		Known: true, Module: "monitor", SHA256: "aa", To: []onpath.Prefix{prefix(t, "198.51.100.10")}}}
	applied(t, lease, nil)
	write(lease, 0)
	lease.Spec.Until = time.Now().Add(time.Hour)
	write(lease, onpath.AnyVersion)
	s = newStore(t, inner)
	lease.Status.State = onpath.InstanceReady
	write(lease, onpath.AnyVersion)
	lease.Spec.SHA256 = "bb" // another module in its place
	write(lease, onpath.AnyVersion)
	other := onpath.Clone(lease)
	other.Metadata = onpath.Metadata{Name: "gw1-2", Tenant: onpath.OperatorTenant}
	other.Spec.Publisher, other.Spec.Known = "key-1", false
	write(other, 0)
	for _, o := range []onpath.Object{lease, other} {
		if _, err := s.Write(decided, onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(o), Version: onpath.AnyVersion}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Take(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := l.Audit("", 100, func(e onpath.LoggedEntry) error {
		if e.What != onpath.LogChange {
			module, _, _ := strings.Cut(strings.Join(e.Functions, " "), "@")
			got = append(got, fmt.Sprintf("%s %q %s %s %v %v", e.What, e.Tenant, module, e.Method, e.Prefixes, e.Cloudlets))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	of := func(what, tenant, module, method string) string {
		return fmt.Sprintf("%s %q %s %s [198.51.100.10] [fra1]", what, tenant, module, method)
	}
	want := []string{of("begin", "acme", "acme/monitor", "operator"), of("end", "acme", "acme/monitor", "operator"),
		of("begin", "acme", "acme/monitor", "operator"), of("begin", "", "key-1/monitor", "password"),
		of("end", "acme", "acme/monitor", "operator"), of("end", "", "key-1/monitor", "password")}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

// TestNoTile: a tile of a number that no log has is not there.
func TestNoTile(t *testing.T) {
	l := openLog(t, t.TempDir())
	fill(t, l, newStore(t, mem.New(mem.Options{})), 0, 3)
	for _, path := range []string{"tile/entries/x036/x028/x797/x018/x963/968", "tile/0/x036/x028/x797/x018/x963/968"} {
		if _, err := l.Tile(path); onpath.CodeOf(err) != onpath.CodeNotFound {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestDamaged: a line that cannot be read takes nothing with it: what was signed is refused
// and left as it is, until it is restored; what never was, a crash has left, and goes.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	s := newStore(t, mem.New(mem.Options{}))
	l := openLog(t, dir)
	fill(t, l, s, 0, 50)
	at := l.at[20]
	_ = l.Close()
	path := filepath.Join(dir, "entries")
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	bad[at] = '#'
	if err := os.WriteFile(path, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	l = openLog(t, dir)
	if err := l.Continue(t.Context(), s); err == nil || !strings.Contains(err.Error(), "20 entries of 50") {
		t.Errorf("it goes on: %v", err)
	}
	_ = l.Close()
	if left, _ := os.ReadFile(path); !bytes.Equal(left, bad) {
		t.Error("what stands behind the damaged line is gone")
	}
	if err := os.WriteFile(path, append(bytes.Clone(good), "{\"id\": #\nmore of it"...), 0o600); err != nil {
		t.Fatal(err)
	}
	l = openLog(t, dir)
	if err := l.Continue(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadFile(path); !bytes.Equal(left, good) {
		t.Error("what a crash has left is not gone")
	}
	_ = l.Close()
	hashes := filepath.Join(dir, "hashes")
	held, _ := os.ReadFile(hashes)
	if err := os.WriteFile(hashes, append(bytes.Clone(held), make([]byte, 10*tlog.HashSize)...), 0o600); err != nil {
		t.Fatal(err)
	}
	l = openLog(t, dir)
	if err := l.Continue(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadFile(hashes); !bytes.Equal(left, held) {
		t.Error("hashes of entries that are not there stay")
	}
	fill(t, l, s, 50, 5)
	r := reader(t, l)
	now, _, err := r.Checkpoint()
	if err := errors.Join(err, r.Root(now)); err != nil || now.N != 55 {
		t.Errorf("%d entries: %v", now.N, err)
	}
}

// TestSalted: who does not know the server's salt learns nothing of a function by its hash,
// and sees that it is another.
func TestSalted(t *testing.T) {
	s := newStore(t, mem.New(mem.Options{}))
	f := &onpath.Function{TypeMeta: onpath.TypeMeta{Kind: onpath.KindFunction}, Metadata: onpath.Metadata{Name: "fw", Tenant: "acme"},
		Spec: onpath.FunctionSpec{Container: &onpath.ContainerSpec{Image: "host", Env: onpath.Env{"PIN": "1234"}}}}
	same, other := onpath.Clone(f), onpath.Clone(f)
	other.Spec.Container.Env["PIN"] = "1235"
	elsewhere, err := NewStore(t.Context(), s.Store, time.Now, []byte("another"))
	if err != nil {
		t.Fatal(err)
	}
	h := s.publicHash(f)
	if h != s.publicHash(same) || h == s.publicHash(other) || h == elsewhere.publicHash(f) || h == specHash(f) {
		t.Error("hashes do not tell functions apart, or can be computed by anybody")
	}
}

// TestTenantAnew: entries of a former tenant of a name are not those of the one that has it
// now. While none has it, who asks for them gets them.
func TestTenantAnew(t *testing.T) {
	s := newStore(t, mem.New(mem.Options{}))
	l := openLog(t, t.TempDir())
	tenant := func() onpath.Object {
		return applied(t, &onpath.Tenant{Metadata: onpath.Metadata{Name: "acme"}}, nil)
	}
	write := func(o onpath.Object, gone bool) {
		t.Helper()
		ch := onpath.Change{Key: onpath.KeyOf(o), Object: o}
		if gone {
			ch.Object, ch.Version = nil, onpath.AnyVersion
		}
		if _, err := s.Write(t.Context(), onpath.Batch{Changes: []onpath.Change{ch}}); err != nil {
			t.Fatal(err)
		}
	}
	wants := func(want string) {
		t.Helper()
		if err := l.Take(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := l.Audit("acme", 100, func(e onpath.LoggedEntry) error { got += e.Object + " "; return nil }); err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	hosts := func(name string) onpath.Object {
		return applied(t, &onpath.Hosts{Metadata: onpath.Metadata{Name: name, Tenant: "acme"},
			Spec: onpath.HostsSpec{Addresses: []onpath.Prefix{prefix(t, "10.0.0.1")}}}, nil)
	}
	write(hosts("early"), false) // a file may name the tenant after its objects
	write(tenant(), false)
	write(hosts("early"), true)
	wants("hosts acme/early hosts acme/early")
	write(tenant(), true)
	wants("hosts acme/early hosts acme/early")
	write(tenant(), false)
	wants("")
	for i := range 600 { // more than are read at once
		write(hosts(fmt.Sprintf("h%d", i)), false)
		write(hosts(fmt.Sprintf("h%d", i)), true)
	}
	write(hosts("mine"), false)
	if err := l.Take(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := l.Audit("acme", 5000, func(e onpath.LoggedEntry) error {
		n++
		if strings.HasSuffix(e.Object, "early") {
			t.Errorf("entry %d is the former one's", e.Index)
		}
		return nil
	}); err != nil || n != 1201 {
		t.Errorf("%d entries, %v", n, err)
	}
}
