// Package publish runs a publisher's daemons: they hear of crowds, have a module installed on
// the way to each by signed messages, and remove it when the crowd is gone. What to send, and
// when, signal/publisher decides.
package publish

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/onpath/onpath/internal/signalling"
	"github.com/onpath/onpath/signal/nslp"
	"github.com/onpath/onpath/signal/publisher"
)

// Config is what all daemons need.
type Config struct {
	publisher.Options
	// Request is the SETUP that is sent toward crowds.
	Request nslp.Message
	// Send says how; its Toward is each crowd's.
	Send signalling.Options
	// KnownNodes is the file with the keys of nodes that are known.
	KnownNodes string
	// Out is where what happens is printed, a line for each.
	Out io.Writer
}

// Daemon sends what its crowds ask for.
type Daemon struct {
	c Config

	mu     sync.Mutex
	crowds *publisher.Crowds
	keys   sync.Mutex // of KnownNodes

	printing sync.Mutex

	wg sync.WaitGroup
}

// NewDaemon makes one; Run has it work.
func NewDaemon(c Config) *Daemon {
	return &Daemon{c: c, crowds: publisher.New(c.Options)}
}

// say prints a line.
func (d *Daemon) say(format string, args ...any) {
	d.printing.Lock()
	defer d.printing.Unlock()
	fmt.Fprintf(d.c.Out, now().UTC().Format("15:04:05.000")+" "+format+"\n", args...)
}

// Request counts a client's request, and gives where the client is to go, if not here.
func (d *Daemon) Request(client netip.Addr) (at netip.AddrPort, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.crowds.Request(now(), client)
}

const (
	lookEvery = 100 * time.Millisecond
	patience  = 20 * time.Second // for answers
	farewell  = 10 * time.Second // for what is removed in the end
)

// Run sends what is due until ctx ends; then it has the modules removed.
func (d *Daemon) Run(ctx context.Context) {
	tick := every(lookEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		d.mu.Lock()
		steps := d.crowds.Next(now())
		d.mu.Unlock()
		for _, s := range steps {
			d.wg.Go(func() { d.do(ctx, s) })
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	d.wg.Wait()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	d.mu.Lock()
	steps := d.crowds.End()
	d.mu.Unlock()
	for _, s := range steps {
		d.wg.Go(func() { d.do(last, s) })
	}
	d.wg.Wait()
}

// do sends one request and tells what came of it.
func (d *Daemon) do(ctx context.Context, s publisher.Step) {
	stack, err := d.send(ctx, s)
	d.mu.Lock()
	news := d.crowds.Reply(now(), s, stack, err)
	d.mu.Unlock()
	switch {
	case err != nil:
		d.say("%s: %s toward %s of %s: %v", s.Region, s.Do, s.Toward, d.c.Module, err)
	case s.Do != nslp.Probe || news != "":
		d.say("%s: %s toward %s of %s: %s", s.Region, s.Do, s.Toward, d.c.Module, said(stack))
	}
	if news != "" {
		d.say("%s: %s", s.Region, news)
	}
}

func (d *Daemon) send(ctx context.Context, s publisher.Step) ([]nslp.Entry, error) {
	m := nslp.Message{Type: s.Do}
	switch s.Do {
	case nslp.Setup:
		m = d.c.Request
	case nslp.Remove:
		m.Module = d.c.Module
	}
	o := d.c.Send
	o.Toward, o.Timeout = s.Toward, patience
	d.keys.Lock()
	nodes, err := signalling.OpenNodes(d.c.KnownNodes)
	d.keys.Unlock()
	if err != nil {
		return nil, err
	}
	o.Nodes = nodes
	r, err := signalling.Request(ctx, &m, o)
	if err != nil {
		return nil, err
	}
	d.keys.Lock()
	defer d.keys.Unlock()
	fresh, err := nodes.Save()
	for _, line := range fresh {
		d.say("a node shows its key for the first time, and is believed: %s", line)
	}
	return r.Stack, err
}

// said is a stack in a line.
func said(stack []nslp.Entry) string {
	text := ""
	for i, e := range stack {
		if i > 0 {
			text += ", "
		}
		text += e.Node + " " + e.State
		if e.Reason != "" {
			text += fmt.Sprintf(" (%s: %s)", e.Reason, e.Words)
		}
	}
	if text == "" {
		return "no node on the way answers"
	}
	return text
}
