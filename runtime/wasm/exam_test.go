package wasm

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/engine/control"
	"github.com/onpath/onpath/runtime/runtimetest"
)

// TestMain is also the engine of the exam: it does what the first module's configuration
// says.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "engine" {
		if err := examined(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func examined() error {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGTERM)
	l, err := net.FileListener(os.NewFile(3, "control"))
	if err != nil {
		return err
	}
	c, err := l.Accept()
	if err != nil {
		return err
	}
	var r control.Request
	if _, err := control.Read(c.(*net.UnixConn), &r); err != nil {
		return err
	}
	go func() { // what it is told later
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			var r control.Request
			if _, err := control.Read(c.(*net.UnixConn), &r); err == nil {
				_ = control.Write(c.(*net.UnixConn), control.Answer{}, nil)
			}
			c.Close()
		}
	}()
	told := r.Config.Modules[0].Config
	if told["text"] != "" {
		fmt.Println(told["text"])
	}
	if err := control.Write(c.(*net.UnixConn), control.Answer{}, nil); err != nil {
		return err
	}
	does, _ := strconv.Atoi(told["does"])
	switch runtimetest.Behaviour(does) {
	case runtimetest.Exit:
		code, _ := strconv.Atoi(told["code"])
		os.Exit(code)
	case runtimetest.Deaf:
		return syscall.Exec("/bin/sleep", []string{"sleep", "1000"}, nil)
	case runtimetest.Stubborn:
		select {}
	}
	<-heard
	os.Exit(0)
	return nil
}

func options(t *testing.T) Options {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	return Options{
		Dir: filepath.Join(t.TempDir(), "wasm"), Cgroup: fmt.Sprintf("/onpath-test-%d", os.Getpid()),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func TestExam(t *testing.T) {
	opt := options(t)
	t.Cleanup(func() {
		if left, _ := filepath.Glob("/sys/fs/cgroup" + "/*" + opt.Cgroup); len(left) > 0 {
			t.Errorf("control groups are left: %v", left)
		}
	})
	runtimetest.Run(t, runtimetest.Subject{
		Open: func(t *testing.T) onpath.Runtime {
			d, err := New(opt)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Spec: func(command []string) onpath.FunctionSpec {
			config := onpath.Env{"does": command[0], "code": command[1], "text": command[2]}
			return onpath.FunctionSpec{
				Wasm:      &onpath.WasmSpec{Modules: []onpath.WasmModule{{Name: "m", Config: config}}},
				Resources: onpath.Resources{CPU: 500, Memory: 64 << 20},
			}
		},
		Command: func(p runtimetest.Program) []string {
			return []string{strconv.Itoa(int(p.Does)), strconv.Itoa(p.Code), p.Text}
		},
		Kill: func(t *testing.T, p onpath.Process) {
			if err := syscall.Kill(p.Pid(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		NoExec:  true,
		Noticed: 2 * time.Second,
	})
}
