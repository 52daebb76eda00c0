package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// sleeper is a program in a container that sleeps, and forwards once it listens.
const sleeper = `$s = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => %d, Listen => 16) or die; ` +
	`close $c while $c = $s->accept;`

const sleepersYAML = `apiVersion: onpath/v1alpha1
kind: Hosts
metadata: {name: california}
spec: {addresses: [10.2.4.2]}
---
apiVersion: onpath/v1alpha1
kind: Function
metadata: {name: sleeper}
spec:
  container:
    image: host
    addresses: none
    command: [perl, -MIO::Socket::INET, -e, '%s']
  state: none
  packets: keep
  health: {tcp: 9000}
`

const sleeperYAML = `---
apiVersion: onpath/v1alpha1
kind: Deployment
metadata: {name: %[1]s-sleeper}
spec:
  function: sleeper
  place: {cloudlets: [ireland]}
  drain: 1s
  onDemand: {stopAfter: 10s}
---
apiVersion: onpath/v1alpha1
kind: Chain
metadata: {name: %[1]s-sleeper}
spec:
  at: {cloudlets: [ireland]}
  from: any
  to: {hosts: california}
  select: [{protocol: %[1]s}]
  through:
  - {deployment: %[1]s-sleeper}
`

// woken is how long a client waited for a sleeping container.
type woken struct {
	First  string        `json:"first"`  // the packet that woke it
	Asleep time.Duration `json:"asleep"` // from it to the answer
	Awake  time.Duration `json:"awake"`  // the same for the next one
}

// wake has a first SYN start a sleeping container, and a first datagram another one.
func (d *accelerateRun) wake(ctx context.Context) error {
	text := fmt.Sprintf(sleepersYAML, fmt.Sprintf(sleeper, 9000)) + fmt.Sprintf(sleeperYAML, "tcp") + fmt.Sprintf(sleeperYAML, "udp")
	file := filepath.Join(d.Dir, "sleepers.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	if err := d.Testbed.Start("origin-echo", "origin", d.Testbed.Bin(), "demo", "echo", acceleratedOrigin+":7"); err != nil {
		return err
	}
	if err := d.Testbed.Apply(ctx, file); err != nil {
		return err
	}
	for _, chain := range []string{"tcp-sleeper", "udp-sleeper"} {
		if err := d.Testbed.WaitActive(ctx, chain, 20*time.Second, func(string) {}); err != nil {
			return err
		}
	}
	if err := d.Testbed.WaitFor(ctx, "two containers sleep", time.Minute, func() (bool, error) {
		all, err := d.Testbed.Instances(ctx)
		asleep := 0
		for _, i := range all {
			if i.Status.Reason == onpath.ReasonAsleep {
				asleep++
			}
		}
		return asleep == 2, err
	}); err != nil {
		return err
	}
	var err error
	if d.report.ByHand, err = startByHand(ctx); err != nil {
		return err
	}
	for _, w := range []struct{ first, origin, bytes string }{
		{"SYN", net.JoinHostPort(acceleratedOrigin, "8010"), "0"}, {"datagram", "udp/" + acceleratedOrigin + ":7", "8"},
	} {
		out, err := d.Testbed.Exec(ctx, "client", d.Testbed.Bin(), "demo", "receive", w.origin, w.bytes, "2")
		if err != nil {
			return err
		}
		var took []time.Duration
		if err := json.Unmarshal(out, &took); err != nil {
			return err
		}
		x := woken{w.first, took[0], took[1]}
		d.Say("a %s to a sleeping container: answered after %s, the next one after %s", x.First, msText(x.Asleep), msText(x.Awake))
		d.report.Woken = append(d.report.Woken, x)
	}
	return nil
}

// startByHand is how long the sleepers' program takes from its start until it listens.
func startByHand(ctx context.Context) (time.Duration, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	at := l.Addr().(*net.TCPAddr)
	l.Close()
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	began := time.Now()
	cmd := exec.CommandContext(ctx, "perl", "-MIO::Socket::INET", "-e", fmt.Sprintf(sleeper, at.Port))
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() { stop(); _ = cmd.Wait() }()
	for {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			took := time.Since(began)
			return took, c.Close()
		}
		if ctx.Err() != nil {
			return 0, errors.Join(errors.New("the sleepers' program does not listen"), ctx.Err())
		}
		time.Sleep(500 * time.Microsecond)
	}
}

// resent is when a client sends its SYN again (RFC 6298): until then one must do. A datagram
// is not sent again: its echo is its own.
const resent = time.Second

func (r *accelerateReport) checkWoken() {
	for _, w := range r.Woken {
		late := w.Asleep - w.Awake
		r.add(late < resent || w.First != "SYN", "a first "+w.First+" wakes a container, and is answered itself",
			"%s later than the next one; the program started by hand takes %s", msText(late), msText(r.ByHand))
	}
	if len(r.Woken) != 2 {
		r.add(false, "two containers are woken", "%d were", len(r.Woken))
	}
}

func (r *accelerateReport) printWoken(w io.Writer) {
	var parts []string
	for _, x := range r.Woken {
		parts = append(parts, fmt.Sprintf("by a %s %s (awake %s)", x.First, msText(x.Asleep), msText(x.Awake)))
	}
	fmt.Fprintf(w, "Sleeping containers answered %s; their program, started by hand, listens after %s.\n\n",
		strings.Join(parts, ", "), msText(r.ByHand))
}
