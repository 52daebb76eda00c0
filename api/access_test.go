package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/api/wire"
)

// TestTokenOfNoTenant: users are not let in for a tenant that is not there.
func TestTokenOfNoTenant(t *testing.T) {
	w := newWorld(t)
	request := auth.TokenRequest{Role: auth.RoleUser, Name: "alice", Tenant: "acme"}
	_, err := w.operator.CreateToken(t.Context(), request)
	wantCode(t, err, onpath.CodeNotFound)
	if !strings.Contains(err.Error(), "there is no tenant acme; apply a Tenant of that name first") {
		t.Error(err)
	}
	if list, err := w.operator.Tokens(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("tokens %v, %v", list, err)
	}
	w.tenant("acme")
	for _, request.Tenant = range []string{"acme", onpath.DefaultTenant, onpath.OperatorTenant} {
		if _, err := w.operator.CreateToken(t.Context(), request); err != nil {
			t.Errorf("%s: %v", request.Tenant, err)
		}
	}
}

// TestUserTokenForNode: a node is refused a user's token at once, and does not use it up.
func TestUserTokenForNode(t *testing.T) {
	w := newWorld(t)
	w.tenant("acme")
	token, err := w.operator.CreateToken(t.Context(), auth.TokenRequest{Role: auth.RoleUser, Name: "alice", Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Join(t.Context(), token.Word, "n1", t.TempDir())
	wantCode(t, err, onpath.CodeForbidden)
	user, err := client.Join(t.Context(), token.Word, "", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	user.Close()
}

func TestJoin(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	stranger, err := client.Join(ctx, "onpath1.nonsense", "n1", t.TempDir())
	if stranger != nil || onpath.CodeOf(err) != onpath.CodeInvalid {
		t.Fatalf("nonsense is a token: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "cert")
	token, err := w.operator.CreateToken(ctx, auth.TokenRequest{Role: auth.RoleNode})
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.Join(ctx, token.Word, "n1", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	if info, err := os.Stat(filepath.Join(dir, "key.pem")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	if who, err := node.WhoAmI(ctx); err != nil || who.Role != auth.RoleNode || who.Name != "n1" {
		t.Errorf("the node is %+v, %v", who, err)
	}
	_, err = client.Join(ctx, token.Word, "n2", t.TempDir())
	wantCode(t, err, onpath.CodeForbidden) // used up

	// Opened again from its files, it is the same node; a renewal keeps it so.
	again, err := client.Default("", dir, "/none")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.Renew(ctx); err != nil {
		t.Fatal(err)
	}
	if who, err := again.WhoAmI(ctx); err != nil || who.Name != "n1" {
		t.Errorf("renewed: %+v, %v", who, err)
	}
	if err := w.operator.Revoke(ctx, "onpath:node/n1"); err != nil {
		t.Fatal(err)
	}
	_, err = again.WhoAmI(ctx)
	wantCode(t, err, onpath.CodeForbidden)
	_, err = client.Default("", filepath.Join(t.TempDir(), "x"), "/none/s")
	if err != nil {
		t.Errorf("without a certificate the socket is meant: %v", err)
	}
}

// TestNodeJoinsAnew: with a token a refused certificate is replaced, a good one
// is kept, and nothing is guessed about which server is meant.
func TestNodeJoinsAnew(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	var log bytes.Buffer
	o := client.NodeOptions{Name: "n1", Identity: filepath.Join(t.TempDir(), "identity"), Socket: "/none", Log: slog.New(slog.NewTextHandler(&log, nil))}
	begin := func(word string) error {
		t.Helper()
		o.Token = word
		c, err := client.ForNode(ctx, o)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.WhoAmI(ctx)
		return err
	}
	token := func(address string) string {
		t.Helper()
		made, err := w.operator.CreateToken(ctx, auth.TokenRequest{Role: auth.RoleNode, Name: "n1", Address: address})
		if err != nil {
			t.Fatal(err)
		}
		return made.Word
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	o.Server = "https://" + w.address
	wantCode(t, begin(""), onpath.CodeForbidden)
	first := token("")
	ok(begin(first))
	ok(begin(first)) // left in a configuration file, it is not needed again
	ok(begin(""))
	ok(w.operator.Revoke(ctx, "onpath:node/n1"))
	err := begin("")
	if wantCode(t, err, onpath.CodeForbidden); !strings.Contains(err.Error(), "onpath token create --node n1") {
		t.Errorf("no remedy: %v", err)
	}
	if err := begin(first); err == nil || !strings.Contains(err.Error(), "used up") || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("a refused certificate and a used token: %v", err)
	}
	ok(begin(token("")))
	if !strings.Contains(log.String(), "joining anew") {
		t.Errorf("it was not said:\n%s", log.String())
	}
	err = begin(token("192.0.2.1:7443"))
	if wantCode(t, err, onpath.CodeInvalid); !strings.Contains(err.Error(), "192.0.2.1:7443") || !strings.Contains(err.Error(), w.address) {
		t.Errorf("a token of another server: %v", err)
	}

	// The server is installed anew at its old address: another authority.
	w.stop()
	ok(os.RemoveAll(filepath.Join(w.dir, "auth")))
	w.start()
	wantCode(t, begin(""), onpath.CodeForbidden)
	ok(begin(token("")))
	ok(os.WriteFile(filepath.Join(o.Identity, "key.pem"), []byte("broken"), 0o600))
	wantCode(t, begin(""), onpath.CodeInvalid)
	ok(begin(token("")))
}

// TestCertificatesAreRenewed begins with a certificate of which two thirds are
// over.
func TestCertificatesAreRenewed(t *testing.T) {
	w := newWorld(t)
	const past = 61 * 24 * time.Hour
	w.clock.advance(-past)
	token, err := w.operator.CreateToken(t.Context(), auth.TokenRequest{Role: auth.RoleNode})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "cert")
	c, err := client.Join(t.Context(), token.Word, "n1", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w.clock.advance(past)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); c.KeepFresh(ctx, slog.New(slog.DiscardHandler)) }()
	defer func() { cancel(); <-ended }()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		h, err := auth.OpenHolder(dir)
		if err == nil && time.Until(h.Expires()) > 80*24*time.Hour {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("not renewed: %v, %v", h, err)
		}
	}
	if who, err := c.WhoAmI(ctx); err != nil || who.Name != "n1" {
		t.Errorf("renewed: %+v, %v", who, err)
	}
}

func TestTokensAreLimited(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	token, err := w.operator.CreateToken(ctx, auth.TokenRequest{Role: auth.RoleNode, TTL: onpath.Duration(time.Minute), Uses: 3})
	if err != nil {
		t.Fatal(err)
	}
	join := func(word, name string) error {
		c, err := client.Join(ctx, word, name, filepath.Join(t.TempDir(), "cert"))
		if c != nil {
			c.Close()
		}
		return err
	}
	if err := join(token.Word, "n1"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, join(token.Word, "n1"), onpath.CodeExists) // taken by another key
	wantCode(t, join(token.Word, "No Name"), onpath.CodeInvalid)
	if list, err := w.operator.Tokens(ctx); err != nil || len(list) != 1 || list[0].Uses != 2 {
		t.Errorf("tokens %+v, %v", list, err)
	}
	w.stop() // tokens outlive the server
	w.start()
	if err := join(token.Word, "n2"); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(2 * time.Minute)
	err = join(token.Word, "n3")
	wantCode(t, err, onpath.CodeForbidden)
	if !strings.Contains(err.Error(), "expired") {
		t.Errorf("got %v", err)
	}
	// A token for this very node lets a machine that was set up anew come back.
	if _, err := w.join(auth.TokenRequest{Role: auth.RoleNode, Name: "n1"}, "n1"); err != nil {
		t.Errorf("joining again: %v", err)
	}
	_, err = w.join(auth.TokenRequest{Role: auth.RoleNode, Name: "n1"}, "n5")
	wantCode(t, err, onpath.CodeForbidden)
	_, err = w.operator.CreateToken(ctx, auth.TokenRequest{Role: auth.RoleUser, Name: "alice"})
	wantCode(t, err, onpath.CodeInvalid) // no tenant
	token, _ = w.operator.CreateToken(ctx, auth.TokenRequest{Role: auth.RoleNode})
	if err := w.operator.DeleteToken(ctx, token.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, join(token.Word, "n9"), onpath.CodeForbidden)
}

func TestWrongPin(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	token, err := w.operator.CreateToken(t.Context(), auth.TokenRequest{Role: auth.RoleNode, Address: other.address})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Join(t.Context(), token.Word, "n1", t.TempDir())
	wantCode(t, err, onpath.CodeForbidden)
	if !strings.Contains(err.Error(), "not the server that made the token") {
		t.Errorf("got %v", err)
	}
	// Nobody without a certificate gets anywhere by TLS.
	parsed, _ := auth.ParseToken(token.Word)
	parsed.Address = w.address
	parsed.Secret = "0.0"
	_, err = client.Join(t.Context(), parsed.Encode(), "n1", t.TempDir())
	wantCode(t, err, onpath.CodeForbidden)
}

func TestTenantsAreIsolated(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for _, tenant := range []string{"acme", "rival"} {
		o, _ := onpath.New(onpath.KindTenant)
		o.Meta().Name = tenant
		if _, err := w.operator.Apply(ctx, []onpath.Object{o, hosts(tenant, "site", "10.0.0.1")}, client.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.operator.Put(ctx, cloudlet("fra1")); err != nil {
		t.Fatal(err)
	}
	alice := w.user("acme")
	if _, err := alice.Put(ctx, hosts("acme", "mine", "10.0.0.2")); err != nil {
		t.Fatal(err)
	}
	if list, _, err := alice.List(ctx, onpath.KindHosts, ""); err != nil || len(list) != 2 {
		t.Errorf("alice sees %d hosts, %v", len(list), err)
	}
	if list, _, err := alice.List(ctx, onpath.KindTenant, ""); err != nil || len(list) != 1 {
		t.Errorf("alice sees %d tenants, %v", len(list), err)
	}
	rival := onpath.KeyOf(hosts("rival", "site", "10.0.0.1"))
	refused := map[string]func() error{
		"read another's":   func() error { _, err := alice.Get(ctx, rival); return err },
		"read what is not": func() error { rival := rival; rival.Name = "none"; _, err := alice.Get(ctx, rival); return err },
		"list another's":   func() error { _, _, err := alice.List(ctx, onpath.KindHosts, "rival"); return err },
		"list nodes":       func() error { _, _, err := alice.List(ctx, onpath.KindNode, ""); return err },
		"write another's":  func() error { _, err := alice.Put(ctx, hosts("rival", "site", "10.0.0.9")); return err },
		"apply another's": func() error {
			_, err := alice.Apply(ctx, []onpath.Object{hosts("rival", "x", "10.0.0.9")}, client.ApplyOptions{})
			return err
		},
		"delete another's": func() error { return alice.Delete(ctx, rival, false) },
		"delete by apply": func() error {
			_, err := alice.Apply(ctx, nil, client.ApplyOptions{Delete: []onpath.Key{rival}})
			return err
		},
		"write a cloudlet": func() error { _, err := alice.Put(ctx, cloudlet("fra1")); return err },
		"change her tenant": func() error {
			o, _ := onpath.New(onpath.KindTenant)
			o.Meta().Name = "acme"
			_, err := alice.Put(ctx, o)
			return err
		},
		"make tokens":        func() error { _, err := alice.CreateToken(ctx, auth.TokenRequest{Role: auth.RoleNode}); return err },
		"revoke":             func() error { return alice.Revoke(ctx, "onpath:node/n1") },
		"see all flows":      func() error { return alice.Flows(ctx, client.FlowsOf{}, nil) },
		"see counters":       func() error { _, err := alice.Counters(ctx, ""); return err },
		"capture at an edge": func() error { return alice.Capture(ctx, client.CaptureAt{Node: "n1"}, io.Discard) },
		"another's logs":     func() error { return alice.Logs(ctx, "rival", "x", client.LogsOptions{Tail: -1}, io.Discard) },
		"another's images":   func() error { _, err := alice.PushImage(ctx, "rival", randomLayout(t), nil); return err },
		"watch another's":    func() error { return alice.Watch(ctx, client.WatchOptions{Tenant: "rival"}, nil) },
	}
	function := func(image string) *onpath.Function {
		o, _ := onpath.New(onpath.KindFunction)
		f := o.(*onpath.Function)
		f.Metadata.Tenant, f.Metadata.Name = "acme", "f"
		f.Spec.Container = &onpath.ContainerSpec{Image: image, Command: []string{"sleep"}}
		return f
	}
	digest := "@sha256:" + strings.Repeat("0", 64)
	for _, image := range []string{"host", onpath.ImageHost + "/rival/x" + digest} {
		refused["use "+image] = func() error { _, err := alice.Put(ctx, function(image)); return err }
	}
	if _, err := alice.Put(ctx, function(onpath.ImageHost+"/acme/x"+digest)); err != nil {
		t.Error(err)
	}
	for what, do := range refused {
		if err := do(); onpath.CodeOf(err) != onpath.CodeForbidden {
			t.Errorf("alice may %s: %v", what, err)
		}
	}
	if _, err := alice.Trace(ctx, onpath.Tuple{Protocol: 6, Src: addr("10.0.0.1"), Dst: addr("10.0.0.2")}, ""); err != nil || w.controller.asked.Tenant != "acme" {
		t.Errorf("alice's trace is for %q, %v", w.controller.asked.Tenant, err)
	}
	got := make(chan string, 10)
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	_, revision, _ := alice.List(ctx, onpath.KindHosts, "")
	go func() {
		_ = alice.Watch(wctx, client.WatchOptions{From: revision}, func(c client.Change) error { got <- c.Key.String(); return nil })
	}()
	for _, o := range []onpath.Object{hosts("rival", "new", "10.0.0.1"), cloudlet("ams1"), hosts("acme", "new", "10.0.0.1")} {
		if _, err := w.operator.Put(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	if k := <-got; k != "hosts acme/new" {
		t.Errorf("alice's watch shows %s", k)
	}
}

// agent is a node's handler for the API's sake.
type agent struct{}

func (agent) Plan(context.Context, *onpath.NodePlan) {}

func (agent) Serve(ctx context.Context, op onpath.NodeOp, request json.RawMessage, stream io.ReadWriteCloser) error {
	switch op {
	case onpath.OpCounters:
		return json.NewEncoder(stream).Encode(onpath.Counters{Flows: 7})
	case onpath.OpUsage:
		return json.NewEncoder(stream).Encode(map[string]onpath.Usage{"acme/web-1": {Memory: 5}})
	case onpath.OpFlows:
		var f onpath.FlowFilter
		if err := json.Unmarshal(request, &f); err != nil {
			return err
		}
		return json.NewEncoder(stream).Encode(onpath.FlowEntry{Vport: f.Vport, Packets: 3})
	case onpath.OpLogs:
		_, _ = stream.Write([]byte("a line\n"))
		var l onpath.LogsRequest
		if err := json.Unmarshal(request, &l); err != nil {
			return err
		}
		if l.Follow {
			return onpath.Errorf(onpath.CodeUnavailable, "the disk of %s broke", l.Instance)
		}
		return nil
	case onpath.OpCapture:
		_, err := stream.Write(append([]byte("pcapng "), request...))
		return err
	case onpath.OpExec:
		return session.ServeExec(ctx, stream, func(_ context.Context, e session.ExecIO) (int, error) {
			_, err := io.Copy(e.Stdout, e.Stdin)
			return 3, err
		})
	}
	return onpath.Errorf(onpath.CodeUnsupported, "no %s", op)
}

func TestNodeOperations(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	c, err := w.join(auth.TokenRequest{Role: auth.RoleNode}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	sctx, cancel := context.WithCancel(ctx)
	s := session.Dial(sctx, session.Options{Connect: c.Dial, Hello: func() onpath.NodeHello { return onpath.NodeHello{Node: "n1"} }}, agent{})
	defer func() { cancel(); <-s.Done() }()
	<-w.nodes.connected
	o, _ := onpath.New(onpath.KindInstance)
	i := o.(*onpath.Instance)
	i.Metadata.Tenant, i.Metadata.Name = "acme", "web-1"
	i.Spec.Node, i.Spec.Vport = "n1", 42
	if _, err := w.store.Write(ctx, onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(i), Object: i}}}); err != nil {
		t.Fatal(err)
	}
	alice := w.user("acme")

	var out bytes.Buffer
	if err := alice.Logs(ctx, "acme", "web-1", client.LogsOptions{Tail: -1}, &out); err != nil || out.String() != "a line\n" {
		t.Errorf("logs %q, %v", &out, err)
	}
	err = alice.Logs(ctx, "acme", "web-1", client.LogsOptions{Tail: -1, Follow: true}, io.Discard)
	if onpath.CodeOf(err) != onpath.CodeUnavailable || !strings.Contains(err.Error(), "disk of acme/web-1 broke") {
		t.Errorf("a late failure: %v", err)
	}
	out.Reset()
	if err := alice.Capture(ctx, client.CaptureAt{Instance: "acme/web-1", Count: 5}, &out); err != nil || out.String() != `pcapng {"vport":42,"count":5}` {
		t.Errorf("capture %q, %v", &out, err)
	}
	out.Reset()
	exit, err := alice.Exec(ctx, "acme", "web-1", []string{"cat", "-n"}, false, session.ExecIO{Stdin: strings.NewReader("hello"), Stdout: &out, Stderr: io.Discard})
	if err != nil || exit != 3 || out.String() != "hello" {
		t.Errorf("exec %d %q, %v", exit, &out, err)
	}
	_, err = alice.Exec(ctx, "acme", "none", []string{"cat"}, false, session.ExecIO{})
	wantCode(t, err, onpath.CodeNotFound)
	flows := 0
	if err := alice.Flows(ctx, client.FlowsOf{Instance: "web-1"}, func(f wire.Flow) bool { flows += int(f.Entry.Vport); return true }); err != nil || flows != 42 {
		t.Errorf("flows %d, %v", flows, err)
	}
	if all, err := w.operator.Counters(ctx, ""); err != nil || all.Nodes["n1"].Flows != 7 {
		t.Errorf("counters %+v, %v", all, err)
	}
	if all, err := w.operator.Usage(ctx, "n1"); err != nil || all.Nodes["n1"]["acme/web-1"].Memory != 5 {
		t.Errorf("usage %+v, %v", all, err)
	}
	_, err = w.operator.Counters(ctx, "n2")
	wantCode(t, err, onpath.CodeUnavailable)

	// A node may do nothing but be a node, and only the one that it is.
	_, _, err = c.List(ctx, onpath.KindHosts, "")
	wantCode(t, err, onpath.CodeForbidden)
	bctx, bcancel := context.WithCancel(ctx)
	thief := session.Dial(bctx, session.Options{Connect: c.Dial, Hello: func() onpath.NodeHello { return onpath.NodeHello{Node: "n2"} }}, agent{})
	select {
	case n := <-w.nodes.connected:
		t.Errorf("node n1 connected as %s", n)
	case <-time.After(300 * time.Millisecond):
	}
	bcancel()
	<-thief.Done()

	// Deleting the node ends its session, and it does not come back.
	n, _ := onpath.New(onpath.KindNode)
	n.Meta().Name = "n1"
	if _, err := w.store.Write(ctx, onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(n), Object: n}}}); err != nil {
		t.Fatal(err)
	}
	if err := w.operator.Delete(ctx, onpath.KeyOf(n), false); err != nil {
		t.Fatal(err)
	}
	if gone := <-w.nodes.gone; gone != "n1" {
		t.Errorf("gone: %s", gone)
	}
	select {
	case <-w.nodes.connected:
		t.Error("a deleted node came back")
	case <-time.After(500 * time.Millisecond):
	}
}

// randomLayout is an OCI layout of one image.
func randomLayout(t *testing.T) string {
	t.Helper()
	image, err := random.Image(100_000, 3)
	if err != nil {
		t.Fatal(err)
	}
	return layoutOf(t, image)
}

func layoutOf(t *testing.T, image v1.Image) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "Web_Cache")
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.AppendImage(image); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImages(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	image, err := random.Image(100_000, 3)
	if err != nil {
		t.Fatal(err)
	}
	alice := w.user("acme")
	var sent int64
	ref, err := alice.PushImage(ctx, "acme", layoutOf(t, image), func(done, total int64) { sent = total })
	if err != nil || !strings.HasPrefix(ref, onpath.ImageHost+"/acme/web-cache@sha256:") || sent < 300_000 {
		t.Fatalf("%s, %d bytes, %v", ref, sent, err)
	}
	sent = 0
	if again, err := alice.PushImage(ctx, "acme", layoutOf(t, image), func(_, total int64) { sent = total }); err != nil || again != ref || sent != 0 {
		t.Errorf("again: %s, %d bytes, %v", again, sent, err)
	}
	if told, err := client.ImageRef("acme", layoutOf(t, image)); err != nil || told != ref {
		t.Errorf("without a push it is told as %s, %v", told, err)
	}
	archive := filepath.Join(t.TempDir(), "docker.tar")
	tag, _ := name.NewTag("x:y")
	if err := tarball.WriteToFile(archive, tag, image); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.PushImage(ctx, "acme", archive, nil); err != nil {
		t.Errorf("a docker archive: %v", err)
	}
	_, err = alice.PushImage(ctx, "acme", filepath.Join(t.TempDir(), "none.tar"), nil)
	wantCode(t, err, onpath.CodeNotFound)
	if err := os.WriteFile(archive, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = alice.PushImage(ctx, "acme", archive, nil)
	wantCode(t, err, onpath.CodeInvalid)

	node, err := w.join(auth.TokenRequest{Role: auth.RoleNode}, "n1")
	if err != nil {
		t.Fatal(err)
	}
	w.stop() // images outlive the server
	w.start()
	repo, digest, _ := strings.Cut(strings.TrimPrefix(ref, onpath.ImageHost+"/"), "@")
	var manifest v1.Manifest
	if err := json.Unmarshal(pull(t, node, repo+"/manifests/"+digest), &manifest); err != nil || len(manifest.Layers) != 3 {
		t.Fatalf("manifest %+v, %v", manifest, err)
	}
	for _, d := range append(manifest.Layers, manifest.Config) {
		got, _, err := v1.SHA256(bytes.NewReader(pull(t, node, repo+"/blobs/"+d.Digest.String())))
		if err != nil || got != d.Digest {
			t.Errorf("pulled %s as %s, %v", d.Digest, got, err)
		}
	}
}

// pull reads from the server's images as a node does.
func pull(t *testing.T, node *client.Client, path string) []byte {
	t.Helper()
	answer, err := node.HTTP().Get(node.URL() + "/v2/" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != 200 {
		t.Fatalf("%s: %s %s, %v", path, answer.Status, b, err)
	}
	return b
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// TestTenantsBringCode: object files run in the kernel; tenants' users may bring
// them where the operator says so.
func TestTenantsBringCode(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	tenant := func(allow bool) *onpath.Tenant {
		o, _ := onpath.New(onpath.KindTenant)
		o.Meta().Name = "acme"
		o.(*onpath.Tenant).Spec.AllowEBPF = allow
		return o.(*onpath.Tenant)
	}
	function := func(name string, e onpath.EBPFSpec) *onpath.Function {
		o, _ := onpath.New(onpath.KindFunction)
		f := o.(*onpath.Function)
		f.Metadata.Tenant, f.Metadata.Name, f.Spec.EBPF = "acme", name, &e
		return f
	}
	if _, err := w.operator.Put(ctx, tenant(false)); err != nil {
		t.Fatal(err)
	}
	alice := w.user("acme")
	if _, err := alice.Put(ctx, function("builtin", onpath.EBPFSpec{Object: "firewall"})); err != nil {
		t.Errorf("alice may not use what comes with onpath: %v", err)
	}
	code, err := os.ReadFile("../functions/ebpf-ratelimit/ratelimit.o")
	if err != nil {
		t.Fatal(err)
	}
	own := function("own", onpath.EBPFSpec{Object: "mine.o", Code: code})
	if _, err := alice.Put(ctx, own); onpath.CodeOf(err) != onpath.CodeForbidden {
		t.Errorf("alice may bring code: %v", err)
	}
	if _, err := w.operator.Put(ctx, own); err != nil {
		t.Errorf("the operator may not bring code: %v", err)
	}
	stored, err := w.operator.Get(ctx, onpath.KeyOf(own))
	if err != nil {
		t.Fatal(err)
	}
	if s := stored.(*onpath.Function).Status; len(s.SHA256) != 64 || s.License != "Dual BSD/GPL" || s.Bytes != len(code) {
		t.Errorf("the function's status is %+v, must say what the object is", s)
	}
	for what, spoilt := range map[string][]byte{"no object": []byte("#!/bin/sh"), "half an object": code[:len(code)/2], "a bare head": []byte("\x7fELF")} {
		_, err := w.operator.Put(ctx, function("spoilt", onpath.EBPFSpec{Object: "mine.o", Code: spoilt}))
		if onpath.CodeOf(err) != onpath.CodeInvalid || !strings.Contains(err.Error(), "spec.ebpf.object") {
			t.Errorf("%s is answered by %v", what, err)
		}
	}
	if _, err := w.operator.Apply(ctx, []onpath.Object{tenant(true)}, client.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := alice.Put(ctx, function("allowed", onpath.EBPFSpec{Object: "mine.o", Code: code})); err != nil {
		t.Errorf("alice may not bring code although the operator allows it: %v", err)
	}
}
