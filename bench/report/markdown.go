package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/bench"
)

// Between these lines of a page, Markdown writes; the rest of it is people's.
const (
	resultsBegin = "<!-- results: written by onpath bench report --markdown -->"
	resultsEnd   = "<!-- end of results -->"
)

// Markdown writes the results into a page, between the lines that mark their
// place, and a picture for each benchmark and metric into the folder beside the
// page that has its name.
func Markdown(page string, r *bench.Results) error {
	before, after, err := around(page)
	if err != nil {
		return err
	}
	dir := strings.TrimSuffix(page, filepath.Ext(page))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := removePictures(dir); err != nil {
		return err
	}
	var b strings.Builder
	list := sections(r)
	preface(&b, r, list)
	for _, s := range list {
		if err := s.markdown(&b, dir); err != nil {
			return err
		}
	}
	if err := os.WriteFile(page, []byte(before+resultsBegin+"\n"+b.String()+"\n"+resultsEnd+after), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// CheckPage refuses a page into which Markdown could not write.
func CheckPage(page string) error {
	_, _, err := around(page)
	return err
}

// around is what stands before and after the results in a page.
func around(page string) (before, after string, err error) {
	old, err := os.ReadFile(page)
	if errors.Is(err, fs.ErrNotExist) {
		e := onpath.Errorf(onpath.CodeInvalid, "%s: there is no such file", page)
		e.Remedy = fmt.Sprintf("make it, with two lines: %s and %s", resultsBegin, resultsEnd)
		return "", "", e
	}
	if err != nil {
		return "", "", fmt.Errorf("write the report: %w", err)
	}
	before, rest, found := strings.Cut(string(old), resultsBegin)
	_, after, ended := strings.Cut(rest, resultsEnd)
	if !found || !ended {
		e := onpath.Errorf(onpath.CodeInvalid, "%s does not say where results go", page)
		e.Remedy = fmt.Sprintf("put two lines into it: %s and %s", resultsBegin, resultsEnd)
		return "", "", e
	}
	return before, after, nil
}

// removePictures takes away those of an earlier run.
func removePictures(dir string) error {
	list, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	for _, p := range list {
		err = errors.Join(err, os.Remove(p))
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// preface says where the results are from, and lists all targets.
func preface(b *strings.Builder, r *bench.Results, list []section) {
	m, took := r.Machine, 0.0
	for _, s := range m.Seconds {
		took += s
	}
	fmt.Fprintf(b, "\nMade by `onpath bench` %s on %s, in %.0f minutes: %s, %d CPUs, %.0f GiB, Linux %s. The figures are in [results.json](performance/results.json).\n",
		m.Onpath, m.Started.Format("2006-01-02"), took/60, m.CPU, m.CPUs, float64(m.Memory)/(1<<30), m.Kernel)
	if m.Quick {
		fmt.Fprintf(b, "\nA quick run: it shows that everything works, and its figures mean nothing.\n")
		return
	}
	fmt.Fprintf(b, "\n| benchmark | to reach | contestant | is | median (quartiles) | baseline | |\n|---|---|---|---|---|---|---|\n")
	for _, s := range list {
		for _, v := range s.verdicts {
			h := newHTMLVerdict(v)
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s |\n", s.name, h.Text, h.Contestant, h.Got, h.Measured, h.Baseline, h.mark())
		}
	}
}

// mark makes what is missed stand out.
func (h htmlVerdict) mark() string {
	if h.Class == "missed" {
		return "**" + h.Word + "**"
	}
	return h.Word
}

var unsafe = regexp.MustCompile(`[^a-z0-9]+`)

func (s section) markdown(b *strings.Builder, dir string) error {
	fmt.Fprintf(b, "\n### %s\n\n%s\n", s.name, s.question)
	for _, v := range s.verdicts {
		if v.Measured && !v.Reached && v.Target.Why != "" {
			fmt.Fprintf(b, "\nMissed: %s. %s\n", v.Target.Text, v.Target.Why)
		}
	}
	for _, c := range s.charts() {
		name := s.name + "-" + strings.Trim(unsafe.ReplaceAllString(strings.ToLower(c.metric), "-"), "-") + ".svg"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c.svg()+"\n"), 0o644); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
		fmt.Fprintf(b, "\n#### %s: %s\n\n![%s of %s](%s/%s)\n\n", s.name, c.metric, c.metric, s.name, filepath.Base(dir), name)
		fmt.Fprintf(b, "| case | contestant | median | quartiles | of others |\n|---|---|---|---|---|\n")
		for _, r := range c.records {
			fmt.Fprintf(b, "| %s | %s | %s %s | %s – %s | %s |\n", r.Case, r.Contestant, c.scale.format(r.Value), c.scale.unit,
				c.scale.format(r.Low), c.scale.format(r.High), ratios(r))
		}
	}
	for _, k := range s.skipped {
		fmt.Fprintf(b, "\n%s did not take part: %s.\n", k.Contestant, strings.TrimSuffix(k.Why, "."))
	}
	for _, p := range s.profiles {
		fmt.Fprintf(b, "\n#### Where the time of %s goes: %s\n\n| function | share |\n|---|---|\n", p.Contestant, p.Case)
		for _, x := range p.Shares {
			fmt.Fprintf(b, "| `%s` | %s |\n", x.Function, percent(x.Share))
		}
	}
	return nil
}
