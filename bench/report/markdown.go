package report

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/onpath/onpath/bench"
)

// Markdown writes results.md with the tables and, beside it, a picture for each
// benchmark and metric.
func Markdown(dir string, r *bench.Results) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "# Results\n\nMade by `onpath bench` %s on %s: %s, %d CPUs, %.0f GiB, Linux %s. [performance.md](../performance.md) says how to read them.\n",
		m.Onpath, m.Started.Format("2006-01-02"), m.CPU, m.CPUs, float64(m.Memory)/(1<<30), m.Kernel)
	for _, s := range sections(r) {
		if err := s.markdown(&b, dir); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "results.md"), []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

var unsafe = regexp.MustCompile(`[^a-z0-9]+`)

func (s section) markdown(b *strings.Builder, dir string) error {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", s.name, s.question)
	if len(s.verdicts) > 0 {
		fmt.Fprintf(b, "\n| contestant | to reach | is | |\n|---|---|---|---|\n")
	}
	for _, v := range s.verdicts {
		h := newHTMLVerdict(v)
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", h.Contestant, h.Text, h.Got, h.Word)
	}
	for _, c := range s.charts() {
		name := s.name + "-" + strings.Trim(unsafe.ReplaceAllString(strings.ToLower(c.metric), "-"), "-") + ".svg"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(c.svg()+"\n"), 0o644); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
		fmt.Fprintf(b, "\n### %s\n\n![%s of %s](%s)\n\n", c.metric, c.metric, s.name, name)
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
		fmt.Fprintf(b, "\nWhere the time of %s goes (%s): `%s`.\n", p.Contestant, p.Case, p.File)
	}
	return nil
}
