package report

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"github.com/onpath/onpath/bench"
)

// chart is one metric of one benchmark: a bar for each case and contestant, with
// a line from the lower to the upper quartile.
type chart struct {
	metric  string
	scale   scale
	records []bench.Record
}

// charts of a section, one for each metric.
func (s section) charts() (list []chart) {
	at := map[string]int{}
	for _, r := range s.records {
		i, ok := at[r.Metric]
		if !ok {
			i = len(list)
			at[r.Metric] = i
			list = append(list, chart{metric: r.Metric, scale: scaleOf(r)})
		}
		list[i].records = append(list[i].records, r)
	}
	return list
}

// Measures of a chart, in pixels.
const (
	chartWidth = 760
	labelWidth = 130
	valueWidth = 90
	barHeight  = 16
	rowHeight  = 20
	caseHeight = 26
	axisHeight = 24
)

// The colours tell onpath from what it is compared with. They are readable on white
// and by those who see no red.
func colour(contestant string) string {
	if strings.HasPrefix(contestant, "onpath") {
		return "#0b6e99"
	}
	switch contestant {
	case "xdp", "tc":
		return "#b9c4cc"
	}
	return "#8795a1"
}

// svg draws the chart; it needs nothing else.
func (c chart) svg() string {
	top, step := c.axis()
	plot := float64(chartWidth - labelWidth - valueWidth)
	x := func(v float64) float64 { return labelWidth + plot*math.Max(0, v/c.scale.by)/top }
	var body strings.Builder
	y, last := 0, ""
	for _, r := range c.records {
		if r.Case != last {
			last = r.Case
			y += caseHeight
			fmt.Fprintf(&body, `<text x="0" y="%d" font-weight="600">%s</text>`, y-8, html.EscapeString(r.Case))
		}
		c.bar(&body, r, y, x)
		y += rowHeight
	}
	var b strings.Builder
	height := y + axisHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s" font-family="system-ui, sans-serif" font-size="12" fill="#1f2933">`,
		chartWidth, height, chartWidth, height, html.EscapeString(c.metric))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`, chartWidth, height)
	for v := 0.0; v <= top*1.0001; v += step {
		at := x(v * c.scale.by)
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="18" y2="%d" stroke="#e4e7eb"/><text x="%.1f" y="%d" text-anchor="middle" fill="#616e7c">%s</text>`,
			at, at, y+2, at, y+17, strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end" fill="#616e7c">%s</text>`, chartWidth, y+17, html.EscapeString(c.scale.unit))
	b.WriteString(body.String())
	b.WriteString("</svg>")
	return b.String()
}

func (c chart) bar(b *strings.Builder, r bench.Record, y int, x func(float64) float64) {
	middle := y + rowHeight/2
	end := x(r.Value)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labelWidth-8, middle+4, html.EscapeString(r.Contestant))
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`, labelWidth, y+(rowHeight-barHeight)/2, math.Max(1, end-labelWidth), barHeight, colour(r.Contestant))
	if r.High > r.Low {
		fmt.Fprintf(b, `<path d="M%.1f %dH%.1fM%.1f %dv6M%.1f %dv6" stroke="#1f2933" fill="none"/>`, x(r.Low), middle, x(r.High), x(r.Low), middle-3, x(r.High), middle-3)
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`, math.Max(end, x(r.High))+6, middle+4, c.scale.format(r.Value))
}

// axis gives where the axis ends, in the scale's unit, and the step of its ticks.
func (c chart) axis() (top, step float64) {
	for _, r := range c.records {
		top = math.Max(top, math.Max(r.Value, r.High)/c.scale.by)
	}
	if top <= 0 || math.IsNaN(top) {
		return 1, 0.5
	}
	step = math.Pow(10, math.Floor(math.Log10(top)))
	for _, f := range []float64{0.2, 0.5, 1} {
		if top/(step*f) <= 6 {
			step *= f
			break
		}
	}
	return step * math.Ceil(top/step), step
}
