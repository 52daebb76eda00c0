package table_test

import (
	"strings"
	"testing"

	"github.com/onpath/onpath/cli/table"
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

// TestNarrow: on a narrow terminal the last column is wrapped, beside the others
// while there is room for it, then below them; numbers and names stay whole.
func TestNarrow(t *testing.T) {
	tab := table.New("NAME", ">READY", "MESSAGE")
	tab.Row("web", "2", "no node of the cloudlet has the room that this function asks for")
	tab.Row("größer", "10")
	for columns, want := range map[int]string{
		0: "NAME    READY  MESSAGE\nweb         2  no node of the cloudlet has the room that this function asks for\ngrößer     10  -\n",
		48: "NAME    READY  MESSAGE\n" +
			"web         2  no node of the cloudlet has the\n" +
			"               room that this function asks for\n" +
			"größer     10  -\n",
		40: "NAME    READY\nweb         2\n    no node of the cloudlet has the room\n    that this function asks for\ngrößer     10\n",
	} {
		if got := tab.Format(columns); got != want {
			t.Errorf("at %d columns got\n%swant\n%s", columns, got, want)
		}
	}
	numbers := table.New("A NAME THAT IS LONG", ">NUMBER")
	numbers.Row("x", "1")
	if got := numbers.Format(10); strings.Count(got, "\n") != 2 {
		t.Errorf("a table without text is wrapped:\n%s", got)
	}
}

// TestParagraph: a file gets its text as it is.
func TestParagraph(t *testing.T) {
	var b strings.Builder
	if err := table.Paragraph(&b, "1.0 s  ", "  all of it on one line, however long that is, as long as nobody looks at it on a terminal"); err != nil {
		t.Fatal(err)
	}
	if want := "1.0 s    all of it on one line, however long that is, as long as nobody looks at it on a terminal\n"; b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
