package peers

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/measure"
	"github.com/onpath/onpath/node/base"
)

// measuring measures what the plan says, and answers other nodes.
type measuring struct {
	part *base.Part

	apply     sync.Mutex // serialises set
	plan      *onpath.MeasurePlan
	at        netip.Addr
	reflector *measure.Reflector
	sender    *measure.Sender

	mu     sync.Mutex
	values map[string]measure.Value
}

// set has a plan measured, nil: nothing. What cannot begin is tried again with the next
// plan.
func (m *measuring) set(p *onpath.MeasurePlan, at netip.Addr) {
	m.apply.Lock()
	defer m.apply.Unlock()
	if m.sender != nil && (p == nil || at != m.at || !slices.Equal(p.Secret, m.plan.Secret)) {
		m.stop()
	}
	if p == nil || !at.IsValid() {
		m.plan = nil
		return
	}
	if m.sender != nil && reflect.DeepEqual(p, m.plan) {
		return
	}
	if m.sender == nil {
		if err := netnsrun.Do(m.part.NetNS, func() error { return m.start(p, at) }); err != nil {
			m.stop()
			m.part.Log.Warn("nothing is measured between nodes; it is tried again with the next plan", "err", err)
			return
		}
	}
	m.plan, m.at = p, at
	m.forget(p)
	var list []measure.Target
	for _, t := range p.Targets {
		list = append(list, measure.Target{
			Name: t.Name, Address: t.Address, Connect: t.Connect, Every: time.Duration(t.Every), Change: t.Change,
		})
	}
	m.sender.Set(list)
}

func (m *measuring) start(p *onpath.MeasurePlan, at netip.Addr) (err error) {
	if m.reflector, err = measure.NewReflector(netip.AddrPortFrom(at, onpath.MeasurePort), p.Secret); err != nil {
		return err
	}
	m.sender, err = measure.NewSender(measure.SenderOptions{From: at, Secret: p.Secret, Told: m.told, Enter: func(f func() error) error {
		return netnsrun.Do(m.part.NetNS, f)
	}})
	return err
}

// stop ends everything. Callers hold apply.
func (m *measuring) stop() {
	if m.sender != nil {
		_ = m.sender.Close()
	}
	if m.reflector != nil {
		_ = m.reflector.Close()
	}
	m.sender, m.reflector, m.plan = nil, nil, nil
	m.forget(nil)
}

// forget drops values of targets that are none any more.
func (m *measuring) forget(p *onpath.MeasurePlan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.values {
		if p == nil || !slices.ContainsFunc(p.Targets, func(t onpath.MeasureTarget) bool { return t.Name == name }) {
			delete(m.values, name)
		}
	}
}

func (m *measuring) told(name string, v measure.Value) {
	m.mu.Lock()
	if m.values == nil {
		m.values = map[string]measure.Value{}
	}
	m.values[name] = v
	m.mu.Unlock()
	base.Kick(m.part.ReportDue)
}

// distances are the values told last, in order.
func (m *measuring) distances() (list []onpath.Distance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, v := range m.values {
		list = append(list, onpath.Distance{To: name, RTT: onpath.Duration(v.RTT), Loss: v.Loss})
	}
	slices.SortFunc(list, func(a, b onpath.Distance) int { return cmp.Compare(a.To, b.To) })
	return list
}
