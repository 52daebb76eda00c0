package relay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
)

// process is one instance. It ends with the process that runs all of them.
type process struct {
	d    *Driver
	id   string
	pid  int
	over chan struct{} // the process has ended

	mu   sync.Mutex // guards rec and gone
	rec  record
	gone chan struct{} // stopped
}

var (
	_ onpath.Process        = (*process)(nil)
	_ onpath.Attached       = (*process)(nil)
	_ onpath.Reconfigurable = (*process)(nil)
	_ onpath.Lacking        = (*process)(nil)
	_ onpath.Relaying       = (*process)(nil)
)

func (p *process) ID() string { return p.id }

func (p *process) Labels() map[string]string { return p.rec.Labels }

func (p *process) Pid() int {
	select {
	case <-p.over:
		return 0
	default:
		return p.pid
	}
}

// AttachedTo implements onpath.Attached: the process is in the node's namespace, and takes
// connections in each instance's.
func (p *process) AttachedTo(netns string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	its, err := netnsrun.Identity(netns)
	return err != nil || p.rec.Namespace == "" || its == p.rec.Namespace // an earlier version did not note it
}

func (p *process) Exited() <-chan struct{} { return p.over }

// Exit implements onpath.Process: how the process ended is not known for each instance.
func (p *process) Exit() (int, time.Time) {
	<-p.over
	return -1, time.Now()
}

// Resize implements onpath.Process: all relays of a node share one process, whose
// connections are limited for each tenant.
func (p *process) Resize(context.Context, onpath.Resources) error {
	if p.Pid() == 0 {
		return onpath.Errorf(onpath.CodeNotFound, "the relays' process has ended")
	}
	return nil
}

// Usage is the instance's part of the process. Processor time is divided by what each has done
// since it was divided before, memory by connections; what keeps no accounts, evenly.
func (p *process) Usage(ctx context.Context) (onpath.Usage, error) {
	pid := p.Pid()
	if pid == 0 {
		return onpath.Usage{}, onpath.Errorf(onpath.CodeNotFound, "the relays' process has ended")
	}
	s, err := p.d.state(ctx)
	if err == nil && s.Used == nil {
		return p.d.former.usage(p.id, pid, s.Instances)
	}
	used, ok := s.Used[p.id]
	if err == nil && !ok {
		err = fmt.Errorf("the relays' process does not know instance %s", p.id)
	}
	if err != nil {
		if p.Pid() == 0 {
			err = onpath.Errorf(onpath.CodeNotFound, "the relays' process has ended")
		}
		return onpath.Usage{}, err
	}
	var open int64 // one more each: an instance without connections takes memory too
	for _, u := range s.Used {
		open += u.Open + 1
	}
	return onpath.Usage{CPU: used.CPU, Memory: onpath.Size(float64(resident(pid)) * float64(used.Open+1) / float64(open))}, nil
}

// resident is the memory of a process; 0: it is not known.
func resident(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if f := strings.Fields(string(b)); err == nil && len(f) > 1 {
		n, _ := strconv.ParseInt(f[1], 10, 64)
		return n * int64(os.Getpagesize())
	}
	return 0
}

// Relayed implements onpath.Relaying.
func (p *process) Relayed(ctx context.Context) (onpath.Relayed, error) {
	if p.Pid() == 0 {
		return onpath.Relayed{}, onpath.Errorf(onpath.CodeNotFound, "the relays' process has ended")
	}
	s, err := p.d.state(ctx)
	t, stayed := s.Stats.Tenants[p.rec.Instance.Tenant], map[string]int64{}
	for why, n := range s.Stats.Stayed {
		stayed[string(why)] = n
	}
	return onpath.Relayed{Vanished: s.Stats.Vanished, Stayed: stayed,
		Connections: t.Connections, Most: t.Most, Full: t.Full, ToOrigin: t.ToOrigin, ToClient: t.ToClient}, err
}

// AwaitFull implements onpath.Relaying.
func (p *process) AwaitFull(ctx context.Context, was onpath.RelayFullness) (now onpath.RelayFullness, err error) {
	err = p.d.ask(ctx, p.d.patient, http.MethodGet, "/instances/"+p.id+"/full?was="+string(was), nil, &now)
	if !errors.Is(err, errUnknown) {
		return now, err
	}
	select { // it will not learn it
	case <-p.over:
		return was, nil
	case <-ctx.Done():
		return was, ctx.Err()
	}
}

// Reconfigure implements onpath.Reconfigurable.
func (p *process) Reconfigure(ctx context.Context, s *onpath.FunctionSpec) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.rec
	next.Instance.Work = s.RelayWork()
	if next.Instance.Work == nil {
		return onpath.Errorf(onpath.CodeInvalid, "the planner has not said what this relay does")
	}
	if err := p.d.put(ctx, p.id, next.Instance); err != nil {
		return err
	}
	p.rec = next
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return errors.Join(p.d.keep(p.id, next), p.d.mayWait(next.Instance))
}

// Lacks implements onpath.Lacking.
func (p *process) Lacks() error {
	p.mu.Lock()
	is := p.rec.Instance
	p.mu.Unlock()
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.mayWait(is)
}

// Stop implements onpath.Process. The last instance's end is the process's.
func (p *process) Stop(ctx context.Context, _ time.Duration) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if p.d.runs[p.id] != p {
		return nil
	}
	if p.Pid() != 0 {
		if err := p.d.call(ctx, http.MethodDelete, "/instances/"+p.id, nil, nil); err != nil && p.Pid() != 0 {
			return err
		}
	}
	delete(p.d.runs, p.id)
	if err := os.Remove(p.d.record(p.id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(p.d.runs) == 0 {
		return p.d.end(ctx)
	}
	return nil
}

// watch tells when a process that is not a child has ended.
func watch(pid int) (chan struct{}, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer unix.Close(fd)
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	return over, nil
}
