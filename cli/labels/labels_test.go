package labels_test

import (
	"testing"

	"github.com/onpath/onpath/cli/labels"
)

func TestMatches(t *testing.T) {
	of := map[string]string{"app": "web", "tier": "front", "example.org/owner": "ann"}
	for s, want := range map[string]bool{
		"app=web": true, "app==web": true, "app=db": false, "app!=db": true, "app!=web": false, "missing!=x": true,
		"app": true, "!app": false, "missing": false, "!missing": true, "app = web , tier=front": true, "app=web,tier=back": false,
		"app in (web, db)": true, "app in (db)": false, "app notin (db,x)": true, "missing notin (x)": true,
		"example.org/owner=ann": true, "app=": false,
	} {
		sel, err := labels.Parse(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
		} else if sel.Matches(of) != want {
			t.Errorf("%s: %v, must be %v", s, !want, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, s := range []string{"", "app=web,", "=web", "app in", "app in (web", "app>3", "a b", "app=web db"} {
		if sel, err := labels.Parse(s); err == nil {
			t.Errorf("%q is taken, as %v", s, sel)
		}
	}
}
