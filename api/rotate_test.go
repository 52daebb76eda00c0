package api_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/wire"
)

// TestRotateAuthority: while the authority is rotated, certificates and tokens of both are
// accepted. Who connects gets a certificate of the new one, and goes on when the former one is
// gone; who was away is refused with a remedy, and nodes that were are not forgotten by accident.
func TestRotateAuthority(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	in := func(r auth.TokenRequest, name string) (dir string) {
		t.Helper()
		token, err := w.operator.CreateToken(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(t.TempDir(), "cert")
		c, err := client.Join(ctx, token.Word, name, dir)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		return dir
	}
	node := auth.TokenRequest{Role: auth.RoleNode}
	here, away := in(node, "here"), in(node, "away")
	ann := in(auth.TokenRequest{Role: auth.RoleOperator, Name: "ann"}, "")
	before, err := w.operator.CreateToken(ctx, node)
	if err != nil {
		t.Fatal(err)
	}
	who := func(dir string) (string, error) {
		c, err := client.Default("", dir, "/none")
		if err != nil {
			return "", err
		}
		defer c.Close()
		i, err := c.WhoAmI(ctx)
		return i.Name, err
	}
	if _, err := client.KeysOf(w.operator).Rotate(ctx, "authority", wire.Rotate{End: true}); onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("the end of no rotation: %v", err)
	}
	r, err := client.KeysOf(w.operator).Rotate(ctx, "authority", wire.Rotate{})
	if err != nil {
		t.Fatal(err)
	}
	if a := r.Authority; a.Former == "" || a.Former == a.Authority || len(a.Waiting) != 3 || len(a.Tokens) != 1 {
		t.Errorf("begun: %+v", a)
	}
	if _, err := client.KeysOf(w.operator).Rotate(ctx, "authority", wire.Rotate{}); onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("begun twice: %v", err)
	}

	h, err := auth.OpenHolder(here)
	if err != nil {
		t.Fatal(err)
	}
	agent := client.Remote(h)
	defer agent.Close()
	if i, err := agent.WhoAmI(ctx); err != nil || i.Name != "here" {
		t.Fatalf("a certificate of the former authority: %+v, %v", i, err)
	}
	fresh, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); agent.KeepFresh(fresh, slog.New(slog.DiscardHandler)) }()
	defer func() { stop(); <-ended }()
	waiting := func() []string {
		r, err := client.KeysOf(w.operator).Rotation(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return r.Authority.Waiting
	}
	for end := time.Now().Add(20 * time.Second); len(waiting()) != 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a node that is here has no new certificate: %v", waiting())
		}
	}
	w.stop()
	w.start() // a restart between changes nothing
	if name, err := who(ann); err != nil || name != "ann" || len(waiting()) != 1 {
		t.Errorf("a user: %q, %v; waiting: %v", name, err, waiting())
	}
	joined := filepath.Join(t.TempDir(), "cert")
	if c, err := client.Join(ctx, before.Word, "late", joined); err != nil {
		t.Errorf("a token of before: %v", err)
	} else {
		c.Close()
	}
	after := in(auth.TokenRequest{Role: auth.RoleOperator, Name: "eve"}, "")
	unused, err := w.operator.CreateToken(ctx, node)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.KeysOf(w.operator).Rotate(ctx, "authority", wire.Rotate{End: true})
	if onpath.CodeOf(err) != onpath.CodeConflict || !strings.Contains(err.Error(), "onpath:node/away") {
		t.Errorf("a node would be lost: %v", err)
	}
	if r, err = client.KeysOf(w.operator).Rotate(ctx, "authority", wire.Rotate{End: true, Force: true}); err != nil || r.Authority.Former != "" {
		t.Fatalf("%+v, %v", r, err)
	}
	for range 2 {
		for _, dir := range []string{here, ann, joined, after} {
			if name, err := who(dir); err != nil {
				t.Errorf("%s is refused: %v", name, err)
			}
		}
		_, err = who(away)
		if onpath.CodeOf(err) != onpath.CodeForbidden || !strings.Contains(err.Error(), "rotated") || !strings.Contains(err.Error(), "join again") {
			t.Errorf("a node that was away: %v", err)
		}
		w.stop()
		w.start()
	}
	if c, err := client.Join(ctx, unused.Word, "last", t.TempDir()); err != nil {
		t.Errorf("a token of the new authority: %v", err)
	} else {
		c.Close()
	}
}
