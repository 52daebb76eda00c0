package demo

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a program of the testbed: started in a lab host, its output in a
// file, ended by its id.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	from int64 // where this process's part of the log begins
	done chan struct{}
	mu   sync.Mutex
	err  error
}

// start runs cmd with output appended to dir/NAME.log, in a process group of its
// own, so that a Ctrl-C on the terminal reaches us and not it.
func start(dir, name string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), cmd: cmd, done: make(chan struct{})}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if st, err := out.Stat(); err == nil {
		p.from = st.Size()
	}
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(p.done)
	}()
	return p, nil
}

// pid of the running process, 0 once ended.
func (p *process) pid() int {
	select {
	case <-p.done:
		return 0
	default:
		return p.cmd.Process.Pid
	}
}

// signal sends sig; a process already gone is no error.
func (p *process) signal(sig syscall.Signal) {
	if id := p.pid(); id != 0 {
		_ = p.cmd.Process.Signal(sig)
	}
}

// stop asks politely, then not.
func (p *process) stop(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.signal(syscall.SIGKILL)
		<-p.done
	}
}

// said reports whether the process has written the words.
func (p *process) said(words string) bool {
	b, err := os.ReadFile(p.log)
	return err == nil && int64(len(b)) >= p.from && strings.Contains(string(b[p.from:]), words)
}

// tail is the end of the process's output, for error messages.
func (p *process) tail(max int64) string {
	f, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > max {
		_, _ = f.Seek(-max, 2)
	}
	b := make([]byte, max)
	n, _ := f.Read(b)
	return string(b[:n])
}
