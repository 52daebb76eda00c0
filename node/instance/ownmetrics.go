package instance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// Bounds of an instance's own metrics, for one scrape.
const (
	ownMetricsTime    = 1500 * time.Millisecond
	ownMetricsBytes   = 256 << 10
	ownMetricsSamples = 1000
	ownMetricsAtOnce  = 8 // instances
)

// OwnMetrics are the metrics that one instance itself tells.
type OwnMetrics struct {
	Name    string // tenant/name of the instance
	Samples model.Vector
	Err     error
}

// ReadOwnMetrics asks all instances whose function says where they tell metrics, and that run.
func (s *Set) ReadOwnMetrics(ctx context.Context) []OwnMetrics {
	s.mu.Lock()
	var asked []self
	for _, in := range s.instances {
		f := in.st.get()
		if m := f.Plan.Spec.Metrics; (m.HTTP != "" || len(m.Exec) > 0) && f.Process != nil && !f.Leaving && !f.Asleep {
			asked = append(asked, in.self)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, ownMetricsTime)
	defer cancel()
	read := make([]OwnMetrics, len(asked))
	slots := make(chan struct{}, ownMetricsAtOnce)
	var all sync.WaitGroup
	for i, in := range asked {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			f := in.st.get()
			samples, err := readSamples(ctx, in)
			read[i] = OwnMetrics{f.Name(), samples, err}
		})
	}
	all.Wait()
	return read
}

func readSamples(ctx context.Context, in self) (model.Vector, error) {
	var text boundBuffer
	m := in.current().Spec.Metrics
	var err error
	if m.HTTP != "" {
		err = in.getMetrics(ctx, m.HTTP, &text)
	} else {
		err = in.runMetrics(ctx, m.Exec, &text)
	}
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(&text.text)
	if err != nil {
		return nil, fmt.Errorf("not metrics in Prometheus' text format: %w", err)
	}
	var samples model.Vector
	for _, f := range families {
		some, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, f)
		if err != nil {
			return nil, err
		}
		if samples = append(samples, some...); len(samples) > ownMetricsSamples {
			return nil, fmt.Errorf("more than %d values", ownMetricsSamples)
		}
	}
	return samples, nil
}

// runMetrics runs the command in the instance.
func (in self) runMetrics(ctx context.Context, command []string, to io.Writer) error {
	rt, err := in.runtime()
	if err != nil {
		return err
	}
	var wrong tail
	code, err := rt.Exec(ctx, in.id, onpath.ExecSpec{Command: command, Stdout: to, Stderr: &wrong})
	if err == nil && code != 0 {
		err = fmt.Errorf("ended with code %d: %s", code, oneLine(wrong.String()))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", command[0], err)
	}
	return nil
}

// getMetrics asks the instance's loopback.
func (in self) getMetrics(ctx context.Context, at string, to io.Writer) error {
	port, path, _ := strings.Cut(at, "/")
	dial := func(ctx context.Context, _, address string) (c net.Conn, err error) {
		err = netnsrun.Do(in.s.part.Dir.NetNS(in.id), func() (err error) {
			var d net.Dialer
			for _, host := range []string{"127.0.0.1", "::1"} {
				if c, err = d.DialContext(ctx, "tcp", net.JoinHostPort(host, port)); err == nil {
					return nil
				}
			}
			return err
		})
		return c, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:"+port+"/"+path, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New("answers " + answer.Status)
	}
	_, err = io.Copy(to, answer.Body)
	return err
}

// boundBuffer takes no more than ownMetricsBytes.
type boundBuffer struct{ text bytes.Buffer }

func (b *boundBuffer) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > ownMetricsBytes {
		return 0, fmt.Errorf("more than %d bytes", ownMetricsBytes)
	}
	return b.text.Write(p)
}
