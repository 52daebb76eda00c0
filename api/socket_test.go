package api_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api"
)

// TestSocketTouchesNothingElse: whatever is at the path and is no socket of a
// dead server stays, and so does what came there later.
func TestSocketTouchesNothingElse(t *testing.T) {
	dir := t.TempDir()
	file, folder, link := filepath.Join(dir, "file"), filepath.Join(dir, "folder"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	datagrams := filepath.Join(dir, "datagrams")
	d, err := net.ListenPacket("unixgram", datagrams)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	long := filepath.Join(dir, strings.Repeat("x", 108-len(dir)-1))
	for path, want := range map[string]string{
		file: "is a file, not a socket", folder: "is a directory, not a socket", link: "is a symbolic link, not a socket",
		datagrams:                      "another program's",
		filepath.Join(dir, "a/b/sock"): "there is no directory " + filepath.Join(dir, "a/b"),
		filepath.Join(file, "sock"):    "no directory",
		long:                           "108 bytes of at most 107",
	} {
		l, err := api.ListenUnix(path)
		if err == nil {
			_ = l.Close()
			t.Errorf("%s was taken", path)
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", path, err)
		}
		if path != filepath.Join(file, "sock") {
			wantCode(t, err, onpath.CodeInvalid)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 4 {
		t.Errorf("there is %v, %v", list, err)
	}
}

func TestSocketOfTheGreatestLength(t *testing.T) {
	dir := t.TempDir()
	for n := 103; n <= 107; n++ {
		path := filepath.Join(dir, strings.Repeat("x", n-len(dir)-1))
		l, err := api.ListenUnix(path)
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				_ = c.Close()
			}
		}()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		_ = c.Close()
		_ = l.Close()
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("there stays %v", list)
	}
}

// TestSocketThatIsNotOursStays: another's file under the socket's name outlives
// the server.
func TestSocketThatIsNotOursStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := api.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if b, err := os.ReadFile(path); string(b) != "theirs" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestSocketKilledBeforeItsName: what a server left that was killed before its
// socket had its name is in nobody's way.
func TestSocketKilledBeforeItsName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.Listen("unix", path+".new")
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = dead.Close()
	l, err := api.ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

// TestRemoveDeadSocket: what a killed server left goes; a living server's, and
// whatever is no socket, stays.
func TestRemoveDeadSocket(t *testing.T) {
	dir := t.TempDir()
	left, alive, file := filepath.Join(dir, "left"), filepath.Join(dir, "alive"), filepath.Join(dir, "file")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	s, err := api.ListenUnix(alive)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, stays := range map[string]bool{left: false, alive: true, file: true, filepath.Join(dir, "absent"): false} {
		api.RemoveDeadSocket(path)
		if _, err := os.Lstat(path); (err == nil) != stays {
			t.Errorf("%s is there: %v, want %v", path, err == nil, stays)
		}
	}
}
