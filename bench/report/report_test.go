package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath/bench"
)

func results() *bench.Results {
	r := &bench.Results{Machine: bench.Machine{Kernel: "6.1", CPU: "a CPU", CPUs: 2, Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: map[string]float64{"ebpf-chain": 1},
		Skipped: []bench.Skip{{Benchmark: "ebpf-chain", Contestant: "ovs", Why: "<not installed>"}}}}
	for _, c := range []struct {
		name  string
		value float64
	}{{"linux", 600e3}, {"xdp", 2000e3}, {"onpath-xdp", 1900e3}} {
		rec := bench.Record{Benchmark: "ebpf-chain", Case: "64B, 1 flow, 1 function", Contestant: c.name, Metric: bench.MetricRate, Unit: "packets/s", Value: c.value, Low: c.value * 0.9, High: c.value * 1.1,
			Ratio: map[string]float64{"linux": c.value / 600e3, "xdp": c.value / 2000e3}}
		delete(rec.Ratio, c.name)
		r.Records = append(r.Records, rec)
	}
	return r
}

func TestText(t *testing.T) {
	var b bytes.Buffer
	if err := Text(&b, results()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1900", "3.17 linux, 0.95 xdp", "skipped ovs", "≥ 2.5, is 3.17: reached", "not measured"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
}

// TestHTML: the page is well formed, has the pictures, escapes, and loads nothing.
func TestHTML(t *testing.T) {
	var b bytes.Buffer
	if err := HTML(&b, results()); err != nil {
		t.Fatal(err)
	}
	s := b.String()
	for _, want := range []string{"<svg", "&lt;not installed&gt;", "3.17 linux"} {
		if !strings.Contains(s, want) {
			t.Errorf("%q is not in the page", want)
		}
	}
	for _, not := range []string{"<script", "src=", "url(", "@import", "<link"} {
		if strings.Contains(s, not) {
			t.Errorf("the page has %q", not)
		}
	}
}

func TestMarkdown(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "speed.md")
	if err := os.WriteFile(page, []byte("before\n"+resultsBegin+"\nold\n"+resultsEnd+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Markdown(page, results()); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(filepath.Join(dir, "speed", "ebpf-chain-rate.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n", "\nafter\n", "![rate of ebpf-chain](speed/ebpf-chain-rate.svg)", "| 3.17 | 1900 kpps (1710 – 2090) | linux: 600 kpps (540 – 660) | reached |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "old") {
		t.Error("the old results are still there")
	}
	if err := os.WriteFile(page, []byte("no place\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Markdown(page, results()); err == nil {
		t.Error("wrote into a page that has no place for results")
	}
}

// TestPage: what docs/performance.md shows is what its results say.
func TestPage(t *testing.T) {
	const docs = "../../docs"
	f, err := os.Open(filepath.Join(docs, "performance", "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	res, err := bench.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile(filepath.Join(docs, "performance.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	page := filepath.Join(dir, "performance.md")
	if err := os.WriteFile(page, committed, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Markdown(page, res); err != nil {
		t.Fatal(err)
	}
	const remedy = "write it again: onpath bench report docs/performance/results.json --markdown docs/performance.md"
	if again, err := os.ReadFile(page); err != nil || !bytes.Equal(again, committed) {
		t.Errorf("docs/performance.md does not show docs/performance/results.json (%v); %s", err, remedy)
	}
	pictures, err := filepath.Glob(filepath.Join(dir, "performance", "*.svg"))
	if err != nil || len(pictures) == 0 {
		t.Fatalf("there are no pictures (%v)", err)
	}
	for _, p := range pictures {
		want, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(docs, "performance", filepath.Base(p))); err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/performance/%s is not of docs/performance/results.json (%v); %s", filepath.Base(p), err, remedy)
		}
	}
}
