package router

import (
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/store/mem"
)

// TestRequestsByDefault: without a quota each user has a share, and a greedy one takes
// nobody else's.
func TestRequestsByDefault(t *testing.T) {
	var rates requestRates
	now, s := time.Unix(1_700_000_000, 0), mem.New(mem.Options{})
	ask := func(name string, n int) (refused int) {
		for range n {
			who := auth.Identity{Role: auth.RoleUser, Tenant: "acme", Name: name}
			err := rates.mayAskAgain(t.Context(), s, who, now)
			if err != nil && onpath.CodeOf(err) != onpath.CodeTooMany {
				t.Fatal(err)
			}
			if err != nil {
				refused++
			}
		}
		return refused
	}
	if n := ask("greedy", userBurst+50); n != 50 {
		t.Errorf("%d of %d requests at once are refused", n, userBurst+50)
	}
	if n := ask("modest", 10); n != 0 {
		t.Errorf("%d requests of another user are refused", n)
	}
	now = now.Add(time.Second)
	if n := ask("greedy", userRequests+5); n != 5 {
		t.Errorf("a second later %d of %d are refused", n, userRequests+5)
	}
}
