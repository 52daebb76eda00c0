package node_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/netnsrun"
	"github.com/onpath/onpath/node"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestClaim: one agent of a name in one network namespace, whatever its folder.
func TestClaim(t *testing.T) {
	name := fmt.Sprintf("claim-%d", os.Getpid())
	for range 2 { // what is released is free
		release, err := node.Claim(name, "/var/lib/first", quiet())
		if err != nil {
			t.Fatal(err)
		}
		_, err = node.Claim(name, "/var/lib/second", quiet())
		if onpath.CodeOf(err) != onpath.CodeConflict || !strings.Contains(err.Error(), "/var/lib/first") || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
			t.Errorf("while it is claimed: %v", err)
		}
		other, err := node.Claim(name+strings.Repeat("x", 200), "/var/lib/third", quiet())
		if err != nil {
			t.Errorf("another name: %v", err)
		} else {
			other()
		}
		release()
	}
}

// TestClaimElsewhere: the same name in another network namespace is another node.
func TestClaimElsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	name := fmt.Sprintf("elsewhere-%d", os.Getpid())
	release, err := node.Claim(name, "/a", quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	ns := filepath.Join(t.TempDir(), "ns")
	if err := netnsrun.Create(ns); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netnsrun.Remove(ns); err != nil {
			t.Error(err)
		}
	}()
	err = netnsrun.Do(ns, func() error {
		release, err := node.Claim(name, "/b", quiet())
		if err == nil {
			release()
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestClaimKilled: a claim ends with its process, in whatever way that ends.
func TestClaimKilled(t *testing.T) {
	if name := os.Getenv("ONPATH_TEST_CLAIM"); name != "" {
		if _, err := node.Claim(name, "/killed", quiet()); err != nil {
			t.Fatal(err)
		}
		fmt.Println("claimed")
		select {}
	}
	name := fmt.Sprintf("killed-%d", os.Getpid())
	c := exec.Command(os.Args[0], "-test.run=^TestClaimKilled$")
	c.Env = append(os.Environ(), "ONPATH_TEST_CLAIM="+name)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 7)
	if _, err := out.Read(said); err != nil || string(said) != "claimed" {
		t.Fatalf("it says %q, %v", said, err)
	}
	if _, err := node.Claim(name, "/b", quiet()); onpath.CodeOf(err) != onpath.CodeConflict {
		t.Errorf("while it lives: %v", err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	release, err := node.Claim(name, "/b", quiet())
	if err != nil {
		t.Fatalf("after it was killed: %v", err)
	}
	release()
}

// TestClaimSquatted: whoever may not run agents keeps none from running, and is
// named.
func TestClaimSquatted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	name := fmt.Sprintf("squatted-%d", os.Getpid())
	listening := make(chan error)
	end := make(chan struct{})
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread stays another user's
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); e != 0 {
			listening <- e
			return
		}
		l, err := net.Listen("unix", "@onpath/node/"+name)
		listening <- err
		if err == nil {
			<-end
			l.Close()
		}
	}()
	if err := <-listening; err != nil {
		t.Fatal(err)
	}
	defer close(end)
	var said bytes.Buffer
	began := time.Now()
	release, err := node.Claim(name, "/a", slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatalf("after %s: %v", time.Since(began), err)
	}
	release()
	if !strings.Contains(said.String(), "user=65534") {
		t.Errorf("the log does not name the user: %s", said.String())
	}
}
