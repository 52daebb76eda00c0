package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
)

// What waits for its confirmation can be listed, by those who may confirm it,
// also after the server came back, and be taken back before its time.
func TestUnconfirmed(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	alice, bob := w.user("a"), w.user("b")
	list := func(c *client.Client) []wire.Unconfirmed {
		t.Helper()
		all, err := c.Unconfirmed(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if all := list(w.operator); all == nil || len(all) != 0 {
		t.Fatalf("at first there is %v", all)
	}
	if _, err := w.operator.Apply(ctx, []onpath.Object{hosts("a", "changed", "10.0.0.1"), hosts("a", "gone", "10.0.0.1")}, client.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	apply := func(c *client.Client, after time.Duration, o client.ApplyOptions, objects ...onpath.Object) string {
		t.Helper()
		o.Confirm = after
		a, err := c.Apply(ctx, objects, o)
		if err != nil {
			t.Fatal(err)
		}
		return a.Confirm.ID
	}
	late := apply(w.operator, time.Hour, client.ApplyOptions{}, hosts("a", "other", "10.0.0.2"))
	soon := apply(alice, time.Minute, client.ApplyOptions{Delete: []onpath.Key{{Kind: onpath.KindHosts, Tenant: "a", Name: "gone"}}},
		hosts("a", "changed", "10.0.0.2"), hosts("a", "new", "10.0.0.2"))
	w.stop()
	w.start()

	all := list(w.operator)
	if len(all) != 2 || all[0].ID != soon || all[1].ID != late {
		t.Fatalf("an operator sees %+v", all)
	}
	did := map[string]wire.Action{}
	for _, c := range all[0].Changes {
		did[c.Name] = c.Action
	}
	if did["changed"] != wire.Updated || did["new"] != wire.Created || did["gone"] != wire.Deleted || len(did) != 3 {
		t.Errorf("the apply did %v", did)
	}
	if !strings.HasPrefix(all[0].By, "onpath:user/a/") || !strings.HasPrefix(all[1].By, "onpath:operator/") {
		t.Errorf("applied by %q and %q", all[0].By, all[1].By)
	}
	if own := list(alice); len(own) != 1 || own[0].ID != soon {
		t.Errorf("the user who applied sees %+v", own)
	}
	if none := list(bob); len(none) != 0 {
		t.Errorf("a user of another tenant sees %+v", none)
	}

	undo := func(c *client.Client, id string) error { _, err := c.Undo(ctx, id); return err }
	wantCode(t, undo(bob, soon), onpath.CodeForbidden)
	wantCode(t, undo(alice, late), onpath.CodeForbidden)
	done, err := alice.Undo(ctx, soon)
	if err != nil {
		t.Fatal(err)
	}
	did = map[string]wire.Action{}
	for _, c := range done.Changes {
		did[c.Name] = c.Action
	}
	if did["changed"] != wire.Updated || did["new"] != wire.Deleted || did["gone"] != wire.Created || len(did) != 3 || len(done.Kept) > 0 {
		t.Errorf("undoing did %+v", done)
	}
	for name, want := range map[string]string{"changed": "10.0.0.1", "gone": "10.0.0.1", "new": "none", "other": "10.0.0.2"} {
		if got := w.addressOf(name); got != want {
			t.Errorf("hosts %s has %s, want %s", name, got, want)
		}
	}
	if told := w.controller.heard(onpath.Key{Kind: onpath.KindHosts, Tenant: "a", Name: "new"}); !strings.Contains(told, "taken back by onpath:user/a/") {
		t.Errorf("it is told %q", told)
	}
	wantCode(t, undo(alice, soon), onpath.CodeNotFound)
	wantCode(t, alice.Confirm(ctx, soon), onpath.CodeNotFound)
	if err := w.operator.Confirm(ctx, late); err != nil {
		t.Fatal(err)
	}
	if left := list(w.operator); len(left) != 0 {
		t.Errorf("there is left %+v", left)
	}
}
