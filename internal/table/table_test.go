package table_test

import (
	"strings"
	"testing"

	"github.com/onpath/onpath/internal/table"
)

func TestTable(t *testing.T) {
	tab := table.New("NAME", ">READY", "WHERE")
	tab.Row("web", "2", "fra1")
	tab.Row("größer", "10")
	tab.Row("x", "1", "two\nlines")
	var b strings.Builder
	if err := tab.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "NAME    READY  WHERE\nweb         2  fra1\ngrößer     10  -\nx           1  two lines\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	if tab.Len() != 3 {
		t.Errorf("%d rows", tab.Len())
	}
}

func TestFollow(t *testing.T) {
	var b strings.Builder
	x := table.New("NAME", ">N")
	for _, rows := range [][][]string{{{"longer", "1"}, {"b", "10"}}, {{"c", "2"}}, {{"the longest", "3"}}, nil} {
		for _, r := range rows {
			x.Row(r...)
		}
		if err := x.Follow(&b); err != nil {
			t.Fatal(err)
		}
	}
	want := "NAME     N\nlonger   1\nb       10\nc        2\nthe longest   3\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
