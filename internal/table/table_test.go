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
