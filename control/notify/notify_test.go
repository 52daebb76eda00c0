package notify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

func open(t *testing.T, dir string) *Keeper {
	t.Helper()
	tenants := func(name string) (time.Time, bool, error) { return time.Time{}, name == "a" || name == "b", nil }
	k, err := Open(dir, slog.New(slog.DiscardHandler), time.Now, tenants)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func said(number uint64, tenant, title string) onpath.NumberedNotification {
	return onpath.NumberedNotification{Number: number, Said: onpath.Notification{Time: time.Unix(int64(number), 0).UTC(),
		Tenant: tenant, Instance: "ids-1", Level: onpath.LevelInfo, Title: title}}
}

func titles(t *testing.T, k *Keeper, f onpath.NotificationFilter) string {
	t.Helper()
	list, err := k.List(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range list {
		out = append(out, n.Title)
	}
	return strings.Join(out, " ")
}

// TestStore: what a node sends again is stored once, also by the next server; what it sends
// after it has lost its folder is new; tenants see their own.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	k := open(t, dir)
	list := []onpath.NumberedNotification{said(1, "a", "one"), said(2, "b", "two"), said(3, "a", "three")}
	for range 2 {
		if err := k.Store("n1", "s1", list); err != nil {
			t.Fatal(err)
		}
	}
	k = open(t, dir)
	if err := k.Store("n1", "s1", append(list, said(4, "a", "four"))); err != nil {
		t.Fatal(err)
	}
	if err := k.Store("n1", "s2", []onpath.NumberedNotification{said(1, "a", "anew"), said(2, "../x", "elsewhere"), said(3, "c", "no tenant"),
		said(4, "a", strings.Repeat("long", 10_000))}); err != nil {
		t.Fatal(err)
	}
	for f, want := range map[onpath.NotificationFilter]string{
		{}:                            "one anew two three four",
		{Tenant: "b"}:                 "two",
		{Tenant: "a", Limit: 2}:       "three four",
		{Instance: "other"}:           "",
		{Tenant: "c"}:                 "",
		{Instance: "ids-1", Limit: 1}: "four",
	} {
		if got := titles(t, k, f); got != want {
			t.Errorf("%+v: %q, must be %q", f, got, want)
		}
	}
}

// TestFollow: what comes is told in order, with what other tenants get left out.
func TestFollow(t *testing.T) {
	k := open(t, t.TempDir())
	if err := k.Store("n1", "s1", []onpath.NumberedNotification{said(1, "a", "before")}); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	got := make(chan string, 1000)
	done := make(chan error, 1)
	go func() {
		done <- k.Follow(t.Context(), onpath.NotificationFilter{Tenant: "a"}, func(n onpath.Notification) error {
			if got <- n.Title; n.Title == "end" {
				return enough
			}
			return nil
		})
	}()
	number := uint64(1)
	store := func(title string) {
		t.Helper()
		list := []onpath.NumberedNotification{said(number+1, "b", "other"), said(number+2, "a", title)}
		if err := k.Store("n1", "s1", list); err != nil {
			t.Fatal(err)
		}
		number += 2
	}
	for len(got) == 0 { // until it has noted where it begins
		store("begin")
		time.Sleep(5 * time.Millisecond)
	}
	for _, title := range []string{"one", "two", "end"} {
		store(title)
	}
	if err := <-done; !errors.Is(err, enough) {
		t.Fatal(err)
	}
	close(got)
	var all []string
	for s := range got {
		if s != "begin" {
			all = append(all, s)
		}
	}
	if strings.Join(all, " ") != "one two end" {
		t.Errorf("%q", all)
	}
}

// TestFollowStored: who lists and then follows is told everything once, also what is stored
// while the list is read.
func TestFollowStored(t *testing.T) {
	k := open(t, t.TempDir())
	next := uint64(1)
	store := func(titles ...string) {
		var list []onpath.NumberedNotification
		for _, title := range titles {
			list = append(list, said(next, "a", title))
			next++
		}
		if err := k.Store("n1", "s1", list); err != nil {
			t.Fatal(err)
		}
	}
	store("one", "two", "three")
	enough := errors.New("enough")
	var got []string
	err := k.Follow(t.Context(), onpath.NotificationFilter{Tenant: "a", Limit: 2}, func(n onpath.Notification) error {
		switch got = append(got, n.Title); n.Title {
		case "two":
			store("meanwhile")
		case "meanwhile":
			store("end")
		case "end":
			return enough
		}
		return nil
	})
	if text := strings.Join(got, " "); !errors.Is(err, enough) || text != "two three meanwhile end" {
		t.Errorf("%q, %v", text, err)
	}
}

// node answers calls with a stream, of which the other end is the test's.
type node struct{ calls chan net.Conn }

func (n *node) Connected() []string { return []string{"n1"} }

func (n *node) Call(context.Context, string, onpath.NodeOp, any) (io.ReadWriteCloser, error) {
	ours, theirs := net.Pipe()
	n.calls <- ours
	return theirs, nil
}

// TestFetch: the node is told what is stored, and no earlier; when it is gone it is asked
// again.
func TestFetch(t *testing.T) {
	k, n := open(t, t.TempDir()), &node{calls: make(chan net.Conn, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- k.Run(ctx, n) }()
	defer func() { cancel(); <-over }()
	for round := range uint64(2) {
		c := <-n.calls
		_, _ = fmt.Fprintln(c, `"s1"`)
		line, _ := json.Marshal(said(round+1, "a", fmt.Sprint("t", round)))
		_, _ = c.Write(append(line, '\n'))
		var stored uint64
		if err := json.NewDecoder(c).Decode(&stored); err != nil || stored != round+1 {
			t.Fatal(stored, err)
		}
		if got := titles(t, k, onpath.NotificationFilter{}); !strings.HasSuffix(got, fmt.Sprint("t", round)) {
			t.Errorf("stored is %q", got)
		}
		c.Close()
	}
}

// TestTenantAnew: the next tenant of a name gets nothing of what the former one was told, nor
// what a node sends of that later. What is kept of a tenant that is gone goes with a start.
func TestTenantAnew(t *testing.T) {
	dir, since, there := t.TempDir(), time.Time{}, true
	anew := func() *Keeper {
		k, err := Open(dir, slog.New(slog.DiscardHandler), time.Now, func(string) (time.Time, bool, error) { return since, there, nil })
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := anew()
	tell := func(list ...onpath.NumberedNotification) {
		t.Helper()
		if err := k.Store("n1", "x", list); err != nil {
			t.Fatal(err)
		}
	}
	all := onpath.NotificationFilter{Tenant: "a"}
	tell(said(1, "a", "old"))
	if err := k.Forget("a"); err != nil {
		t.Fatal(err)
	}
	since = time.Unix(10, 0)
	tell(said(2, "a", "late"), said(11, "a", "new"))
	if got := titles(t, k, all); got != "new" {
		t.Errorf("it has %q", got)
	}
	there = false
	if k = anew(); titles(t, k, all) != "" {
		t.Error("it is kept without its tenant")
	}
	if there = true; titles(t, anew(), all) != "" {
		t.Error("it is read again")
	}
}
