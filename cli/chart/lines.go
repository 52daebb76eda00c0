// Package chart draws charts as SVG that needs nothing else.
package chart

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// Lines is a chart of lines over a common axis.
type Lines struct {
	Title, X, Y string
	Series      []Series
}

// Series is one line. Steps: it jumps from value to value.
type Series struct {
	Name   string
	Steps  bool
	Points []Point
}

// Point is one of a line.
type Point struct{ X, Y float64 }

// Measures of a chart, in pixels.
const (
	width, height = 760, 240
	left, right   = 60, 20
	top, bottom   = 34, 40
)

// colours are readable on white, and by those who see no red.
var colours = []string{"#0b6e99", "#d17a00", "#5a5a5a", "#6b4c9a", "#3f7f3f", "#a05195"}

// SVG draws the chart.
func (l Lines) SVG() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" role="img" `+
		`font-family="sans-serif" font-size="12"><title>%s</title>`,
		width, height, width, html.EscapeString(l.Title))
	fmt.Fprintf(&b, `<text x="%d" y="14" font-weight="bold">%s</text>`, left, html.EscapeString(l.Title))
	x, y := l.ranges()
	for _, v := range ticks(y) {
		at := y.place(v, height-bottom, top)
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`,
			left, width-right, at, at, left-6, at+4, label(v))
	}
	for _, v := range ticks(x) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`, x.place(v, left, width-right), height-bottom+16, label(v))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, width-right, height-6, html.EscapeString(l.X))
	place := func(px, py float64) string {
		return fmt.Sprintf("%.1f,%.1f", x.place(px, left, width-right), y.place(py, height-bottom, top))
	}
	for i, s := range l.Series {
		colour := colours[i%len(colours)]
		var points []string
		for k, p := range s.Points {
			if s.Steps && k > 0 {
				points = append(points, place(p.X, s.Points[k-1].Y))
			}
			points = append(points, place(p.X, p.Y))
		}
		dashes := ""
		if s.Steps && i > 0 { // steps lie on one another
			dashes = fmt.Sprintf(` stroke-dasharray="%d 6"`, max(12/i, 2))
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2"%s points="%s"/>`, colour, dashes, strings.Join(points, " "))
		fmt.Fprintf(&b, `<text x="%d" y="28" fill="%s">%s</text>`, left+i*140, colour, html.EscapeString(s.Name))
	}
	b.WriteString("</svg>")
	return b.String()
}

// span is what an axis shows.
type span struct{ low, high float64 }

func (s span) place(v float64, from, to int) float64 {
	return float64(from) + (v-s.low)/(s.high-s.low)*float64(to-from)
}

// ranges are those of both axes; the upright one begins at 0.
func (l Lines) ranges() (x, y span) {
	x, y = span{math.Inf(1), math.Inf(-1)}, span{0, 0}
	for _, s := range l.Series {
		for _, p := range s.Points {
			x.low, x.high = math.Min(x.low, p.X), math.Max(x.high, p.X)
			y.low, y.high = math.Min(y.low, p.Y), math.Max(y.high, p.Y)
		}
	}
	if !(x.high > x.low) {
		x = span{0, 1}
	}
	if !(y.high > y.low) {
		y.high = y.low + 1
	}
	return x, y
}

// ticks are round values of an axis, about five.
func ticks(s span) (list []float64) {
	step := math.Pow(10, math.Floor(math.Log10(s.high-s.low)))
	for (s.high-s.low)/step < 4 {
		step /= 2
	}
	for v := math.Ceil(s.low/step) * step; v <= s.high+step/1e6; v += step {
		list = append(list, v)
	}
	return list
}

func label(v float64) string {
	if math.Abs(v) < 1e-9 {
		return "0"
	}
	return fmt.Sprintf("%.4g", v)
}
