package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/onpath/onpath"
)

// Command is a command that will run inside a host: in its network namespace,
// in its mount namespace if it has one, and with its name as host name. The
// program is looked up inside the host. Like exec.Command it starts nothing
// yet; an unknown host shows as an error of Start. It ends with exit code 127
// if there is no such program.
func (l *Lab) Command(host, program string, args ...string) *exec.Cmd {
	return l.CommandContext(context.Background(), host, program, args...)
}

// CommandContext is Command that is killed when ctx ends.
func (l *Lab) CommandContext(ctx context.Context, host, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = append(l.enterArgs(host, ""), append([]string{program}, args...)...)
	if l.state.Topology.Host(host) == nil {
		cmd.Err = &onpath.Error{Code: onpath.CodeNotFound, Message: fmt.Sprintf("lab %s has no host %s", l.Name(), quoted(host)), Remedy: "it has " + strings.Join(l.nodes()[1:], ", ")}
	}
	return cmd
}

// Exec runs a command inside a host and returns what it wrote to standard
// output. The error of a command that fails has what it wrote to standard
// error.
func (l *Lab) Exec(ctx context.Context, host, program string, args ...string) ([]byte, error) {
	cmd := l.CommandContext(ctx, host, program, args...)
	cmd.WaitDelay = time.Second // a child of the command may keep the pipes
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil || onpath.CodeOf(err) == onpath.CodeNotFound {
		return out, err
	}
	said := strings.TrimSpace(stderr.String())
	if said == "" {
		said = strings.TrimSpace(string(out))
	}
	return out, fmt.Errorf("%s: %s: %w: %s", host, strings.Join(append([]string{program}, args...), " "), err, said)
}

// NetNS is the file of a host's network namespace, for what takes a path.
func (l *Lab) NetNS(host string) string { return l.dir.net(host) }

func (l *Lab) enterArgs(host, gated string) []string {
	mnt := ""
	if h := l.state.Topology.Host(host); h != nil && h.Private {
		mnt = l.dir.mnt(host)
	}
	return []string{nameEnter, l.dir.net(host), mnt, host, gated}
}

// startCommands starts the hosts' commands in the order of the file.
func (l *Lab) startCommands(ctx context.Context) error {
	for _, h := range l.state.Topology.Hosts {
		for _, c := range h.Commands {
			if err := ctx.Err(); err != nil {
				return err
			}
			cmd := exec.Command(self)
			cmd.Args = append(l.enterArgs(h.Name, "gate"), c.Run...)
			cmd.Dir = "/"
			if c.Directory != "" {
				cmd.Dir = c.Directory
			}
			cmd.Env = os.Environ()
			for k, v := range c.Env {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			if err := l.startCommand(ctx, cmd, &Process{Host: h.Name, Name: c.Name, Run: slices.Clone(c.Run)}); err != nil {
				return fmt.Errorf("host %s: command %s: %w", h.Name, c.Name, err)
			}
		}
	}
	return nil
}

// startCommand starts a host's command, and waits until it has become its program:
// that there is none shows in the host only. What the program does then is not the
// lab's.
func (l *Lab) startCommand(ctx context.Context, cmd *exec.Cmd, p *Process) error {
	said, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	err = l.start(cmd, p, tell)
	tell.Close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = said.SetReadDeadline(time.Now()) })
	defer stop()
	why, err := io.ReadAll(said)
	switch {
	case err != nil:
		return errors.Join(ctx.Err(), err)
	case len(why) == 0:
		return nil
	}
	e := onpath.Errorf(onpath.CodeInvalid, "%s cannot be run: %s", quoted(p.Run[0]), why)
	e.Remedy = "name a program that the host has, or install it"
	if l.state.Topology.Host(p.Host).Private {
		e.Remedy += "; what lies below the host's own paths on this machine needs share"
	}
	return e
}

// start starts a process of the lab's own session, notes it, and only then
// lets it pass the gate. More files are its descriptors behind that.
func (l *Lab) start(cmd *exec.Cmd, p *Process, more ...*os.File) error {
	name := p.Name + ".log"
	if p.Host != "" {
		name = p.Host + "." + name
	}
	p.Log = filepath.Join(l.dir.logs(), name)
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C is meant for Up, not for them
	held, open, err := os.Pipe()
	if err != nil {
		return err
	}
	defer open.Close()
	cmd.ExtraFiles = append([]*os.File{held}, more...) // held becomes descriptor 3, the gate
	err = cmd.Start()
	held.Close()
	if err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // no zombie while we live
	if p.identity, err = identify(cmd.Process.Pid); err != nil {
		return fmt.Errorf("it ended at once: %w", err)
	}
	if err := l.process(p); err != nil {
		return err
	}
	if _, err := open.Write([]byte{1}); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}
