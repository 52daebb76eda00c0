package plan

import (
	"reflect"
	"testing"

	"github.com/onpath/onpath"
)

// TestNews changes every field of a report, one at a time: each is news, but for more or
// fewer flows where there are some.
func TestNews(t *testing.T) {
	filledReport := func() *onpath.NodeReport {
		r := new(onpath.NodeReport)
		fill(reflect.ValueOf(r).Elem())
		return r
	}
	a, b := filledReport(), filledReport()
	if News(a, b) {
		t.Fatal("a report that says the same is news")
	}
	if !News(nil, b) {
		t.Error("the first report is none")
	}
	each(reflect.ValueOf(b).Elem(), "", func(v reflect.Value, name string) {
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.Set(other(v))
		counts := name == ".Instances[0].Flows"
		if got := News(a, b); got == counts {
			t.Errorf("another%s is news: %v", name, got)
		}
		v.Set(was)
	})
	for id := range b.Paths {
		b.Paths[id]++
	}
	if News(a, b) {
		t.Error("more flows of a path are news")
	}
	for id := range b.Paths {
		b.Paths[id] = 0
	}
	b.Instances[0].Flows = 0
	if !News(a, b) {
		t.Error("the end of the last flow is none")
	}
}
