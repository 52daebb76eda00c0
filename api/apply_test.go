package api_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
)

func actions(a *wire.Applied) string {
	s := ""
	for _, c := range a.Changes {
		s += c.Name + ":" + string(c.Action) + " "
	}
	return s
}

// TestApplySaysWhatIsWorthKnowing: in the answer to an apply, and to its repetition.
func TestApplySaysWhatIsWorthKnowing(t *testing.T) {
	w := newWorld(t)
	w.controller.notes = []string{"chain a/x has this before chain a/y"}
	request := client.ApplyOptions{Request: "r1"}
	for range 2 {
		a, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "x", "10.0.0.1")}, request)
		if err != nil || len(a.Notes) != 1 || a.Notes[0] != w.controller.notes[0] {
			t.Errorf("%+v, %v", a, err)
		}
	}
}

func TestApply(t *testing.T) {
	w := newWorld(t)
	ctx, c := t.Context(), w.operator
	both := func() []onpath.Object {
		return []onpath.Object{hosts("a", "x", "10.0.0.1"), hosts("a", "y", "10.0.0.2")}
	}
	dry, err := c.Apply(ctx, both(), client.ApplyOptions{DryRun: true})
	if err != nil || actions(dry) != "x:create y:create " || dry.Preview == nil || dry.Preview.Rules[0].Added != 2 {
		t.Fatalf("%+v, %v", dry, err)
	}
	if list, _, _ := c.List(ctx, onpath.KindHosts, ""); len(list) != 0 {
		t.Fatal("a dry run wrote something")
	}
	for i, want := range []string{"x:create y:create ", "x:unchanged y:unchanged "} {
		a, err := c.Apply(ctx, both(), client.ApplyOptions{})
		if err != nil || actions(a) != want {
			t.Fatalf("apply %d: %+v, %v", i, a, err)
		}
	}
	list, before, _ := c.List(ctx, onpath.KindHosts, "")
	version := list[0].Meta().Version
	changed := both()
	changed[1] = hosts("a", "y", "10.0.0.3")
	a, err := c.Apply(ctx, changed, client.ApplyOptions{Delete: []onpath.Key{{Kind: onpath.KindHosts, Tenant: "a", Name: "gone"}}})
	if err != nil || actions(a) != "x:unchanged y:update gone:unchanged " {
		t.Fatalf("%+v, %v", a, err)
	}
	d := a.Changes[1].Diff
	if len(d) != 1 || d[0].Field != "spec.addresses[0]" || string(d[0].Old) != `"10.0.0.2"` || string(d[0].New) != `"10.0.0.3"` {
		t.Errorf("the difference is %+v", d)
	}
	list, after, _ := c.List(ctx, onpath.KindHosts, "")
	if list[0].Meta().Version != version || after == before {
		t.Errorf("the unchanged object has version %d, before %d", list[0].Meta().Version, version)
	}
}

func TestApplyIsAllOrNothing(t *testing.T) {
	w := newWorld(t)
	ctx, c := t.Context(), w.operator
	bad := []struct {
		name    string
		objects []onpath.Object
		want    []string
	}{
		{"the controller refuses", []onpath.Object{hosts("a", "x", "10.0.0.1"), hosts("a", "bad", "10.0.0.1")}, []string{"overlaps", "priority"}},
		{"two are not valid", []onpath.Object{hosts("a", "x", "10.0.0.1"), &onpath.Hosts{TypeMeta: hosts("", "", "10.0.0.1").TypeMeta, Metadata: onpath.Metadata{Name: "y", Tenant: "a"}}, hosts("a", "Z!", "10.0.0.1")}, []string{"hosts a/y", "hosts a/Z!"}},
		{"twice", []onpath.Object{hosts("a", "x", "10.0.0.1"), hosts("a", "x", "10.0.0.2")}, []string{"twice"}},
	}
	for _, b := range bad {
		_, err := c.Apply(ctx, b.objects, client.ApplyOptions{})
		wantCode(t, err, onpath.CodeInvalid)
		for _, want := range b.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", b.name, err, want)
			}
		}
	}
	var many []onpath.Object
	for i := range onpath.MaxWrite + 1 {
		many = append(many, hosts("a", fmt.Sprintf("h%d", i), "10.0.0.1"))
	}
	_, err := c.Apply(ctx, many, client.ApplyOptions{})
	wantCode(t, err, onpath.CodeInvalid)
	if list, _, _ := c.List(ctx, onpath.KindHosts, ""); len(list) != 0 {
		t.Errorf("%d objects of refused applies are there", len(list))
	}
	if _, err := c.Apply(ctx, many[1:], client.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	// With MaxWrite unchanged ones, one more fits.
	if a, err := c.Apply(ctx, many, client.ApplyOptions{}); err != nil || a.Changes[0].Action != wire.Created {
		t.Fatal(err)
	}
}

// TestApplyKeepsStatus: users write no status, and onpath's own writes between
// reading and writing are no conflict.
func TestApplyKeepsStatus(t *testing.T) {
	w := newWorld(t)
	ctx, c := t.Context(), w.operator
	n := cloudlet("fra1")
	n.Status.Nodes = 99
	if _, err := c.Apply(ctx, []onpath.Object{n}, client.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	o, err := w.store.Get(ctx, onpath.KeyOf(n))
	if err != nil || o.(*onpath.Cloudlet).Status.Nodes != 0 {
		t.Fatalf("a user wrote a status: %+v, %v", o, err)
	}
	o.(*onpath.Cloudlet).Status.Nodes = 3
	if _, err := w.store.Write(ctx, onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(o), Object: o, Version: o.Meta().Version}}}); err != nil {
		t.Fatal(err)
	}
	n = cloudlet("fra1")
	n.Spec.OperatorShare = 10
	if _, err := c.Apply(ctx, []onpath.Object{n}, client.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	o, _ = w.store.Get(ctx, onpath.KeyOf(n))
	if got := o.(*onpath.Cloudlet); got.Status.Nodes != 3 || got.Spec.OperatorShare != 10 || got.Metadata.Generation != 2 {
		t.Errorf("stored %+v", got)
	}
}

func (w *world) addressOf(name string) string {
	o, err := w.store.Get(w.t.Context(), onpath.Key{Kind: onpath.KindHosts, Tenant: "a", Name: name})
	if onpath.CodeOf(err) == onpath.CodeNotFound {
		return "none"
	} else if err != nil {
		w.t.Fatal(err)
	}
	return o.(*onpath.Hosts).Spec.Addresses[0].String()
}

func (w *world) await(name, want string) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if w.addressOf(name) == want {
			return
		}
	}
	w.t.Fatalf("hosts %s has %s, want %s", name, w.addressOf(name), want)
}

// pass has so much time pass for changes that wait for their confirmation.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	w.clock.advance(d)
	_, err := w.operator.Apply(w.t.Context(), []onpath.Object{hosts("other", "last", fmt.Sprintf("10.1.0.%d", 1+w.passed))},
		client.ApplyOptions{Confirm: 24 * time.Hour}) // who waits for deadlines looks at all of them
	if err != nil {
		w.t.Fatal(err)
	}
	w.passed++
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		all, err := w.operator.Unconfirmed(w.t.Context())
		if err != nil || time.Now().After(end) {
			w.t.Fatalf("%+v wait, %v", all, err)
		}
		if !slices.ContainsFunc(all, func(u wire.Unconfirmed) bool { return !u.Deadline.After(w.clock.now()) }) {
			return
		}
	}
}

func TestConfirm(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	apply := func(o client.ApplyOptions, objects ...onpath.Object) *wire.Applied {
		t.Helper()
		a, err := w.operator.Apply(ctx, objects, o)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	apply(client.ApplyOptions{}, hosts("a", "changed", "10.0.0.1"), hosts("a", "deleted", "10.0.0.1"), hosts("a", "touched", "10.0.0.1"))
	soon := client.ApplyOptions{Confirm: time.Hour, Delete: []onpath.Key{{Kind: onpath.KindHosts, Tenant: "a", Name: "deleted"}}}
	apply(soon, hosts("a", "changed", "10.0.0.2"), hosts("a", "new", "10.0.0.2"), hosts("a", "touched", "10.0.0.2"))
	apply(client.ApplyOptions{}, hosts("a", "touched", "10.0.0.3")) // by somebody else meanwhile
	w.await("changed", "10.0.0.2")
	// The server is killed and comes back: it still undoes it.
	w.stop()
	w.clock.advance(time.Hour)
	w.start()
	w.await("changed", "10.0.0.1")
	w.await("deleted", "10.0.0.1")
	w.await("new", "none")
	w.await("touched", "10.0.0.3")
	for name, want := range map[string]string{"changed": "as it was before", "new": "deleted again", "touched": ""} {
		k := onpath.Key{Kind: onpath.KindHosts, Tenant: "a", Name: name}
		for end := time.Now().Add(time.Minute); w.controller.heard(k) == "" && want != "" && time.Now().Before(end); {
			time.Sleep(5 * time.Millisecond) // it is told just after it is done
		}
		if told := w.controller.heard(k); !strings.Contains(told, want) || (told == "") != (want == "") {
			t.Errorf("of %s it is told %q", k, told)
		}
	}
	for _, d := range []time.Duration{-5 * time.Second, time.Millisecond, 25 * time.Hour} {
		_, err := w.operator.Apply(ctx, []onpath.Object{hosts("a", "changed", "10.0.0.9")}, client.ApplyOptions{Confirm: d})
		wantCode(t, err, onpath.CodeInvalid)
		if !strings.Contains(err.Error(), "from 1s to 24h") {
			t.Errorf("%s: %v", d, err)
		}
	}

	a := apply(client.ApplyOptions{Confirm: time.Hour}, hosts("a", "changed", "10.0.0.4"))
	if a.Confirm == nil {
		t.Fatal("nothing to confirm")
	}
	if err := w.operator.Confirm(ctx, a.Confirm.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, w.operator.Confirm(ctx, a.Confirm.ID), onpath.CodeNotFound)
	w.pass(2 * time.Hour)
	w.await("changed", "10.0.0.4")
	if a := apply(client.ApplyOptions{Confirm: time.Second}, hosts("a", "changed", "10.0.0.4")); a.Confirm != nil {
		t.Error("an apply without changes waits for a confirmation")
	}
}

// Unconfirmed changes of one object upon another all go back to what was there
// before the first, in whatever order their times end.
func TestConfirmTwice(t *testing.T) {
	for _, c := range []struct {
		name           string
		first, second  time.Duration
		confirmed      int // which of the two; 0: none
		existed, bring string
	}{
		{"the first ends first", time.Hour, 2 * time.Hour, 0, "10.0.0.1", "10.0.0.1"},
		{"the second ends first", 2 * time.Hour, time.Hour, 0, "10.0.0.1", "10.0.0.1"},
		{"nothing was there, the first ends first", time.Hour, 2 * time.Hour, 0, "", "none"},
		{"nothing was there, the second ends first", 2 * time.Hour, time.Hour, 0, "", "none"},
		{"the first is confirmed", 2 * time.Hour, time.Hour, 1, "10.0.0.1", "10.0.0.2"},
		{"the second is confirmed", time.Hour, 2 * time.Hour, 2, "10.0.0.1", "10.0.0.3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			ctx := t.Context()
			apply := func(after time.Duration, address string) string {
				t.Helper()
				a, err := w.operator.Apply(ctx, []onpath.Object{hosts("a", "h", address)}, client.ApplyOptions{Confirm: after})
				if err != nil {
					t.Fatal(err)
				}
				if a.Confirm == nil {
					return ""
				}
				return a.Confirm.ID
			}
			if c.existed != "" {
				apply(0, c.existed)
			}
			ids := []string{"", apply(c.first, "10.0.0.2"), apply(c.second, "10.0.0.3")}
			if c.confirmed != 0 {
				if err := w.operator.Confirm(ctx, ids[c.confirmed]); err != nil {
					t.Fatal(err)
				}
			}
			w.pass(90 * time.Minute)
			w.pass(time.Hour)
			w.await("h", c.bring)
		})
	}
}

// Changes of one object at the same moment, none confirmed: what was there before
// all of them comes back.
func TestConfirmAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "h", "10.0.0.1")}, client.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			address := fmt.Sprintf("10.0.1.%d", i)
			if _, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "h", address)}, client.ApplyOptions{Confirm: time.Second}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.await("h", "10.0.0.1")
	time.Sleep(200 * time.Millisecond) // and nobody's time is still to come
	w.await("h", "10.0.0.1")
}

// A confirmation at the very end of the time is either in time, and everything
// stays, or refused, and everything goes back.
func TestConfirmAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			name := fmt.Sprintf("h%d", i)
			a, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", name, "10.0.0.1")}, client.ApplyOptions{Confirm: time.Second})
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(time.Until(a.Confirm.Deadline) + time.Duration(i-20)*200*time.Microsecond)
			want := "10.0.0.1"
			if err := w.operator.Confirm(t.Context(), a.Confirm.ID); onpath.CodeOf(err) == onpath.CodeNotFound {
				want = "none"
			} else if err != nil {
				t.Error(err)
			}
			for end := time.Now().Add(time.Minute); w.addressOf(name) != want && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(50 * time.Millisecond)
			if got := w.addressOf(name); got != want {
				t.Errorf("%s: confirmed %v, and it has %s", name, want != "none", got)
			}
		})
	}
	wg.Wait()
}

// What others came to need since is not deleted again.
func TestConfirmNeeded(t *testing.T) {
	w := newWorld(t)
	w.controller.needed = onpath.Key{Kind: onpath.KindHosts, Tenant: "a", Name: "needed"}
	_, err := w.operator.Apply(t.Context(), []onpath.Object{hosts("a", "needed", "10.0.0.1"), hosts("a", "other", "10.0.0.1")}, client.ApplyOptions{Confirm: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	w.await("other", "none")
	w.await("needed", "10.0.0.1")
	for end := time.Now().Add(time.Minute); w.controller.heard(w.controller.needed) == "" && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond) // it is told just after it is done
	}
	if told := w.controller.heard(w.controller.needed); !strings.Contains(told, "used by chain a/web") {
		t.Errorf("of what stays it is told %q", told)
	}
}

func TestWatch(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := w.operator.Put(ctx, hosts("a", "before", "10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	_, revision, err := w.operator.List(ctx, onpath.KindHosts, "")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan client.Change, 1000)
	ended := make(chan error, 1)
	c := client.Unix(w.dir + "/server.sock")
	defer c.Close()
	go func() {
		ended <- c.Watch(ctx, client.WatchOptions{Kinds: []onpath.Kind{onpath.KindHosts}, Tenant: "a", From: revision}, func(e client.Change) error {
			got <- e
			return nil
		})
	}()
	next := func(want string) {
		t.Helper()
		select {
		case e := <-got:
			if e.Key.Name != want {
				t.Fatalf("change of %s, want %s", e.Key, want)
			}
		case err := <-ended:
			t.Fatalf("the watch ended: %v", err)
		case <-ctx.Done():
			t.Fatalf("no change of %s", want)
		}
	}
	write := func(objects ...onpath.Object) {
		t.Helper()
		for _, o := range objects {
			if _, err := w.store.Write(ctx, onpath.Batch{Changes: []onpath.Change{{Key: onpath.KeyOf(o), Object: o, Version: onpath.AnyVersion}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(hosts("b", "other", "10.0.0.1"), cloudlet("c"), hosts("a", "one", "10.0.0.1"))
	next("one")
	for i := range 3 { // the server goes and comes back; nothing is lost or comes twice
		w.stop()
		name := fmt.Sprintf("while-away-%d", i)
		write(hosts("a", name, "10.0.0.1"), hosts("a", name+"-b", "10.0.0.1"))
		w.start()
		next(name)
		next(name + "-b")
	}
	if err := w.operator.Delete(ctx, onpath.Key{Kind: onpath.KindHosts, Tenant: "a", Name: "one"}, false); err != nil {
		t.Fatal(err)
	}
	next("one")
	w.store.Compact(1 << 40)
	err = w.operator.Watch(ctx, client.WatchOptions{From: revision}, func(client.Change) error { return nil })
	wantCode(t, err, onpath.CodeConflict)
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Errorf("the watch ended with %v", err)
	}
}

// TestForce: only deletions of nodes can be forced.
func TestForce(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	if _, err := w.operator.Apply(ctx, []onpath.Object{hosts("a", "one", "192.0.2.1")}, client.ApplyOptions{Force: true}); err == nil {
		t.Error("an apply was forced")
	}
	wantCode(t, w.operator.Delete(ctx, onpath.Key{Kind: onpath.KindHosts, Tenant: "a", Name: "one"}, true), onpath.CodeInvalid)
	wantCode(t, w.operator.Delete(ctx, onpath.Key{Kind: onpath.KindNode, Name: "none"}, true), onpath.CodeNotFound)
}

func TestApplyIsVerified(t *testing.T) {
	w := newWorld(t)
	ctx, c := t.Context(), w.operator
	w.controller.misled = onpath.Errorf(onpath.CodeInternal, "a flow would go astray")
	for _, dry := range []bool{true, false} {
		if _, err := c.Apply(ctx, []onpath.Object{hosts("a", "x", "10.0.0.1")}, client.ApplyOptions{DryRun: dry}); onpath.CodeOf(err) != onpath.CodeInternal {
			t.Errorf("dry run %t: %v", dry, err)
		}
	}
	if list, _, _ := c.List(ctx, onpath.KindHosts, ""); len(list) != 0 {
		t.Fatal("a refused apply wrote something")
	}
	if _, err := c.Apply(ctx, []onpath.Object{hosts("a", "x", "10.0.0.1")}, client.ApplyOptions{NoVerify: true}); err != nil {
		t.Error(err)
	}
	p, err := c.Verify(ctx, []string{"web", "a/x"}, true)
	if err != nil || !p.Live || len(w.controller.proved.Chains) != 2 || w.controller.proved.Chains[0] != "default/web" {
		t.Errorf("%+v of %+v, %v", p, w.controller.proved, err)
	}
}

// TestWatchAhead: who resumes at a store that is another one now is told so, as is
// whoever asks for what there is not.
func TestWatchAhead(t *testing.T) {
	w := newWorld(t)
	none := func(client.Change) error { return nil }
	err := w.operator.Watch(t.Context(), client.WatchOptions{From: 99999999}, none)
	if onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("a watch from the future: %v", err)
	}
	for _, path := range []string{"/v1/watch?kind=hosts", "/v1/flows?vport=3", "/v1/capture?about=x"} {
		if status, body := w.raw("GET", path, ""); status/100 != 4 || !strings.Contains(body, "unknown query parameter") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}
