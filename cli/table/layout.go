package table

import (
	"strings"
	"unicode/utf8"
)

const (
	gap = 2 // between columns
	// leastText is how narrow a column of text may become before its text stands
	// on lines of its own, below the row.
	leastText = 30
	indent    = 4 // of such lines
)

// layout is where the cells of a table stand.
type layout struct {
	widths []int
	right  map[int]bool
	// The last column is wrapped from this place on, at this width; 0: it is not.
	// below: on lines of its own.
	from, width int
	below       bool
}

// layout fits a table into so many columns, 0 for as many as it takes. Only the
// last column gives way, and only if it holds text: names and numbers that were
// cut off could not be used.
func (t *Table) layout(widths []int, columns int) layout {
	l := layout{widths: widths, right: t.right}
	last := len(widths) - 1
	all := -gap
	for _, w := range widths {
		all += w + gap
	}
	if columns <= 0 || all <= columns || last == 0 || t.right[last] {
		return l
	}
	l.from = all - widths[last]
	l.width = columns - l.from
	if l.width < leastText {
		l.below, l.from, l.width = true, indent, max(columns-indent, leastText)
	}
	return l
}

func (l layout) row(b *strings.Builder, row []string, head bool) {
	last := len(row) - 1
	if l.width == 0 {
		l.line(b, row)
		return
	}
	text := wrap(row[last], l.width)
	switch {
	case !l.below:
		l.line(b, append(row[:last:last], text[0]))
		text = text[1:]
	case head || row[last] == "-":
		l.line(b, row[:last])
		return
	default:
		l.line(b, row[:last])
	}
	for _, t := range text {
		b.WriteString(strings.Repeat(" ", l.from) + t + "\n")
	}
}

func (l layout) line(b *strings.Builder, row []string) {
	var line strings.Builder
	for i, c := range row {
		pad := strings.Repeat(" ", max(l.widths[i]-utf8.RuneCountInString(c), 0))
		if i > 0 {
			line.WriteString(strings.Repeat(" ", gap))
		}
		if l.right[i] {
			line.WriteString(pad + c)
		} else {
			line.WriteString(c + pad)
		}
	}
	b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}

// Fill breaks the paragraphs of a text into lines of at most width characters; lines
// that begin with a space stay as they are.
func Fill(text string, width int) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		if !strings.HasPrefix(p, " ") && !strings.Contains(p, "\n ") {
			paragraphs[i] = strings.Join(wrap(p, width), "\n")
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// wrap breaks text at spaces into lines of at most width characters; a longer
// word stays whole.
func wrap(text string, width int) (lines []string) {
	line, used := "", 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		if used > 0 && used+1+n > width {
			lines, line, used = append(lines, line), "", 0
		}
		if used > 0 {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+n
	}
	return append(lines, line)
}
