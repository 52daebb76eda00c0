package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/onpath/onpath/bench/queue"
	"github.com/onpath/onpath/bench/testnet"
	"github.com/onpath/onpath/internal/netnsrun"
)

// queueRouter is Linux forwarding with a process in user space that decides on
// every packet.
func queueRouter() router {
	return router{"nfqueue", func(ctx context.Context, r *Run, l *line) error {
		if r.Program == "" {
			return lacking("it runs the onpath program, which was not named")
		}
		if err := testnet.Set(l.router, "ipv4/ip_forward=1"); err != nil {
			return err
		}
		if err := netnsrun.Do(l.router, queue.Install); err != nil {
			return lacking(fmt.Sprintf("this kernel does not queue packets: %v", err))
		}
		return l.serveQueue(ctx, r, l.router)
	}}
}

// serveQueue starts the process in a namespace, pinned to the CPU that forwards.
func (l *line) serveQueue(ctx context.Context, r *Run, ns string) error {
	ready := filepath.Join(l.Dir(), "queue-ready")
	cmd := exec.Command(r.Program, "bench", "queue", "--ready", ready)
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	ended, err := netnsrun.Start(ns, cmd)
	if err != nil {
		return fmt.Errorf("start %s: %w", r.Program, err)
	}
	l.fault = func() error {
		select {
		case <-ended:
			return fmt.Errorf("the process has ended: %s, %s", cmd.ProcessState, strings.TrimSpace(said.String()))
		default:
		}
		// Columns: linux, net/netfilter/nfnetlink_queue.c, seq_show.
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/netfilter/nfnetlink_queue", cmd.Process.Pid))
		return errors.Join(fmt.Errorf("the process runs, and its queue is %q", strings.Join(strings.Fields(string(state)), " ")), err)
	}
	l.After(func() error {
		_ = cmd.Process.Kill()
		<-ended
		return nil
	})
	for until := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(ready); err == nil {
			l.processes = append(l.processes, cmd.Process.Pid)
			return pinProcess(cmd.Process.Pid, l.cpu)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(until) {
			return errors.New("the process did not begin within five seconds")
		}
	}
}
