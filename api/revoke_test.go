package api_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/session"
	"github.com/onpath/onpath/api/wire"
)

// TestRevokedStreams: what somebody has begun ends with his certificate, and what
// others have begun goes on.
func TestRevokedStreams(t *testing.T) {
	streams := map[string]func(ctx context.Context, c *client.Client, out io.Writer) error{
		"watch": func(ctx context.Context, c *client.Client, out io.Writer) error {
			_, _ = out.Write([]byte("x"))
			return c.Watch(ctx, client.WatchOptions{}, func(client.Change) error { return nil })
		},
		"logs": func(ctx context.Context, c *client.Client, out io.Writer) error {
			return c.Logs(ctx, "acme", "web-1", client.LogsOptions{Tail: -1, Follow: true}, out)
		},
		"exec": func(ctx context.Context, c *client.Client, out io.Writer) error {
			_, _ = out.Write([]byte("x"))
			_, err := c.Exec(ctx, "acme", "web-1", []string{"sleep"}, false, session.ExecIO{Stdout: out})
			return err
		},
	}
	for name, stream := range streams {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.endlessNode()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			bob, err := w.join(auth.TokenRequest{Role: auth.RoleUser, Name: "bob", Tenant: "acme"}, "")
			if err != nil {
				t.Fatal(err)
			}
			open := func(c *client.Client) <-chan error {
				out := &begun{begun: make(chan struct{})}
				ended := make(chan error, 1)
				go func() { ended <- stream(ctx, c, out) }()
				select {
				case <-out.begun:
				case err := <-ended:
					t.Fatalf("it ended before anybody was revoked: %v", err)
				}
				return ended
			}
			alices, bobs := open(w.user("acme")), open(bob)
			w.begun(string(onpath.OpExec), name == "exec")
			w.begun(string(onpath.OpExec), name == "exec")
			if err := w.operator.Revoke(ctx, "onpath:user/acme/alice"); err != nil {
				t.Fatal(err)
			}
			if err := <-alices; onpath.CodeOf(err) != onpath.CodeForbidden || !strings.Contains(err.Error(), "revoked") {
				t.Errorf("it ended with %v", err)
			}
			select {
			case err := <-bobs:
				t.Errorf("another's ended as well: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
		})
	}
}

// TestTenantAnew: the users of a deleted tenant are not those of the next one with
// its name.
func TestTenantAnew(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o, _ := onpath.New(onpath.KindTenant)
	o.Meta().Name = "acme"
	for range 2 {
		if _, err := w.operator.Apply(ctx, []onpath.Object{o}, client.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		alice := w.user("acme")
		if _, err := alice.WhoAmI(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := w.operator.Apply(ctx, nil, client.ApplyOptions{Delete: []onpath.Key{onpath.KeyOf(o)}}); err != nil {
			t.Fatal(err)
		}
		_, err := alice.WhoAmI(ctx)
		wantCode(t, err, onpath.CodeForbidden)
	}
}

// TestTooMuchAtOnce: one user's requests under way have an end, and are no other's
// loss.
func TestTooMuchAtOnce(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	alice, bob := w.user("acme"), w.user("rival")
	_, from, err := alice.List(ctx, onpath.KindHosts, "acme")
	if err == nil {
		_, err = alice.Put(ctx, hosts("acme", "h", "192.0.2.1"))
	}
	if err != nil {
		t.Fatal(err)
	}
	begin := make(chan struct{}, 8) // a busy machine takes long for many TLS handshakes at once
	for range 128 {
		begin <- struct{}{}
		go func() {
			begun := sync.OnceFunc(func() { <-begin })
			defer begun()
			_ = alice.Watch(ctx, client.WatchOptions{From: from}, func(client.Change) error { begun(); return nil })
		}()
	}
	for range cap(begin) {
		begin <- struct{}{}
	}
	err = alice.Watch(ctx, client.WatchOptions{}, func(client.Change) error { return nil })
	if onpath.CodeOf(err) != onpath.CodeTooMany || !strings.Contains(err.Error(), "128 requests under way") {
		t.Errorf("the 129th watch: %v", err)
	}
	if _, err := bob.WhoAmI(ctx); err != nil {
		t.Errorf("another user: %v", err)
	}
	if _, err := w.operator.WhoAmI(ctx); err != nil {
		t.Errorf("an operator: %v", err)
	}
}

// TestTooManyObjects: what a request names is looked up while nobody else writes.
func TestTooManyObjects(t *testing.T) {
	w := newWorld(t)
	var delete []onpath.Key
	for i := range 20_001 {
		delete = append(delete, onpath.Key{Kind: onpath.KindHosts, Tenant: "acme", Name: fmt.Sprint("h", i)})
	}
	_, err := w.operator.Apply(t.Context(), nil, client.ApplyOptions{Delete: delete})
	wantCode(t, err, onpath.CodeInvalid)
	if !strings.Contains(err.Error(), "20001 objects are in one request") {
		t.Error(err)
	}
}

// TestFilesOfNodes: a path as image would be opened by the nodes, as root.
func TestFilesOfNodes(t *testing.T) {
	w := newWorld(t)
	o, _ := onpath.New(onpath.KindFunction)
	f := o.(*onpath.Function)
	f.Metadata.Tenant, f.Metadata.Name = "acme", "f"
	for _, image := range []string{"/dev/watchdog", "./x.tar", "../x"} {
		f.Spec.Container = &onpath.ContainerSpec{Image: image}
		_, err := w.user("acme").Apply(t.Context(), []onpath.Object{f}, client.ApplyOptions{})
		wantCode(t, err, onpath.CodeForbidden)
		if !strings.Contains(err.Error(), "a file of the nodes") {
			t.Error(err)
		}
	}
}

// TestUnreadablePending: a record of an unconfirmed change that cannot be read does
// not keep the server from starting, and the others are still undone.
func TestUnreadablePending(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	a, err := w.operator.Apply(ctx, []onpath.Object{hosts("a", "x", "10.0.0.1")}, client.ApplyOptions{Confirm: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	bad := onpath.Batch{Records: []onpath.Record{{Path: "unconfirmed/broken", Value: []byte(`{"id":"bro`)}}}
	if _, err := w.store.Write(ctx, bad); err != nil {
		t.Fatal(err)
	}
	w.start()
	if all, err := w.operator.Unconfirmed(ctx); err != nil || len(all) != 1 || all[0].ID != a.Confirm.ID {
		t.Errorf("%+v wait, %v", all, err)
	}
}

// TestPendingOfAnother: another server on the same store undoes what waits.
func TestPendingOfAnother(t *testing.T) {
	w := newWorld(t)
	if _, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "x", "10.0.0.1")}, client.ApplyOptions{Confirm: time.Minute}); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.dir = t.TempDir()
	w.start()
	if w.addressOf("x") != "10.0.0.1" {
		t.Fatal("it is gone before its time")
	}
	w.stop()
	w.clock.advance(time.Hour)
	w.start()
	w.await("x", "none")
}

// TestUndoWhatIsRefused: what cannot be as it was stays, and whoever asks is told.
func TestUndoWhatIsRefused(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for _, o := range []onpath.Object{hosts("a", "changed", "10.0.0.1"), hosts("a", "fine", "10.0.0.1")} {
		if _, err := w.operator.Put(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	a, err := w.operator.Apply(ctx, []onpath.Object{hosts("a", "changed", "10.0.0.2"), hosts("a", "fine", "10.0.0.2")}, client.ApplyOptions{Confirm: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	changed := onpath.Key{Kind: onpath.KindHosts, Tenant: "a", Name: "changed"}
	w.controller.refuse(changed)
	done, err := w.operator.Undo(ctx, a.Confirm.ID)
	if err != nil || len(done.Changes) != 1 || done.Changes[0].Action != wire.Updated || len(done.Kept) != 1 || !strings.Contains(done.Kept[0].Why, "stays as it is: ") {
		t.Fatalf("%+v, %v", done, err)
	}
	for name, want := range map[string]string{"changed": "10.0.0.2", "fine": "10.0.0.1"} {
		o, err := w.operator.Get(ctx, onpath.Key{Kind: onpath.KindHosts, Tenant: "a", Name: name})
		if err != nil || o.(*onpath.Hosts).Spec.Addresses[0].String() != want {
			t.Errorf("%s is %+v, %v, want %s", name, o, err, want)
		}
	}
	if told := w.controller.heard(changed); !strings.HasPrefix(told, "Kept: ") {
		t.Errorf("the event is %q", told)
	}
}
