// Package table prints columns aligned by their widest cell, for terminals.
package table

import (
	"io"
	"strings"
	"unicode/utf8"
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
func (t *Table) Write(w io.Writer) error { return t.write(w, true) }

// WriteRows prints the rows alone.
func (t *Table) WriteRows(w io.Writer) error { return t.write(w, false) }

// Follow prints the rows added since the last Follow, below a heading the first
// time. Columns keep their places as far as cells fit.
func (t *Table) Follow(w io.Writer) error {
	head := t.kept == nil
	t.kept = t.widths()
	err := t.write(w, head)
	t.rows = nil
	return err
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

func (t *Table) write(w io.Writer, head bool) error {
	widths := t.widths()
	var b strings.Builder
	if head {
		t.line(&b, t.head, widths)
	}
	for _, row := range t.rows {
		t.line(&b, row, widths)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *Table) line(b *strings.Builder, row []string, widths []int) {
	var line strings.Builder
	for i, c := range row {
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
		if i > 0 {
			line.WriteString("  ")
		}
		if t.right[i] {
			line.WriteString(pad + c)
		} else {
			line.WriteString(c + pad)
		}
	}
	b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}
