// Package table prints columns aligned by their widest cell. On a terminal that
// is too narrow the last column, where messages stand, is wrapped; into files and
// pipes every row is one line.
package table

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/onpath/onpath/cli/terminal"
)

// Table is a list of rows under a heading.
type Table struct {
	head []string
	rows [][]string
	// Right are the columns that are aligned to the right, as numbers are.
	right map[int]bool
	// kept are the widths of what Follow has printed.
	kept []int
}

// New makes a table. A heading that begins with ">" makes its column align to
// the right.
func New(head ...string) *Table {
	t := &Table{right: map[int]bool{}}
	for i, h := range head {
		if name, ok := strings.CutPrefix(h, ">"); ok {
			t.right[i], h = true, name
		}
		t.head = append(t.head, h)
	}
	return t
}

// Row adds a row. Empty cells are printed as "-", so that columns stay
// countable for awk and eye.
func (t *Table) Row(cells ...string) {
	row := make([]string, len(t.head))
	for i := range row {
		if i < len(cells) {
			row[i] = strings.Join(strings.Fields(cells[i]), " ")
		}
		if row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// Len is the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Write prints heading and rows.
func (t *Table) Write(w io.Writer) error { return t.write(w, true, columns(w)) }

// WriteRows prints the rows alone.
func (t *Table) WriteRows(w io.Writer) error { return t.write(w, false, columns(w)) }

// Format is the text that Write prints on a terminal with so many columns; 0
// stands for a file.
func (t *Table) Format(columns int) string {
	var b strings.Builder
	_ = t.write(&b, true, columns) // a builder takes everything
	return b.String()
}

// Follow prints the rows added since the last Follow, below a heading the first
// time. Columns keep their places as far as cells fit.
func (t *Table) Follow(w io.Writer) error {
	head := t.kept == nil
	t.kept = t.widths()
	err := t.write(w, head, columns(w))
	t.rows = nil
	return err
}

// Paragraph prints a text behind a head, on a terminal in lines that fit, below each
// other.
func Paragraph(w io.Writer, head, text string) error {
	trimmed := strings.TrimLeft(text, " ")
	head += text[:len(text)-len(trimmed)]
	lines := []string{trimmed}
	if n := columns(w); n > 0 {
		lines = wrap(trimmed, max(n-utf8.RuneCountInString(head), leastText))
	}
	_, err := fmt.Fprintln(w, head+strings.Join(lines, "\n"+strings.Repeat(" ", utf8.RuneCountInString(head))))
	return err
}

// columns of the terminal behind w; 0 where there is none.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !terminal.Is(f) {
		return 0
	}
	n, _ := terminal.Size(f)
	return n
}

func (t *Table) widths() []int {
	widths := make([]int, len(t.head))
	copy(widths, t.kept)
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	return widths
}

func (t *Table) write(w io.Writer, head bool, columns int) error {
	l := t.layout(t.widths(), columns)
	var b strings.Builder
	if head {
		l.row(&b, t.head, true)
	}
	for _, row := range t.rows {
		l.row(&b, row, false)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
