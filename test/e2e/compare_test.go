package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"testing"
)

// compare reads the answer to a request. What comes must be a beginning of what
// is wanted, and if it ends well, all of it.
func compare(from io.Reader, request *http.Request, want io.Reader) (wrong string, err error) {
	answer, err := http.ReadResponse(bufio.NewReader(from), request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %s", answer.Status)
	}
	got, expected := make([]byte, 4<<10), make([]byte, 4<<10)
	size := 0
	for {
		n, err := answer.Body.Read(got)
		if _, short := io.ReadFull(want, expected[:n]); short != nil || !bytes.Equal(got[:n], expected[:n]) {
			return fmt.Sprintf("%s differs after byte %d", request.URL, size), err
		}
		size += n
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
	}
	if size != chunkSize*chunks {
		return fmt.Sprintf("%s ended well after %d of %d bytes", request.URL, size, chunkSize*chunks), nil
	}
	return "", nil
}

// checkReport holds what happened against what is promised.
func (f *fleet) checkReport(t *testing.T) {
	t.Helper()
	for _, d := range []string{"", "dl-firewall", "dl-cache"} {
		t.Logf("after %d kills of %q: longest silence %s, %d downloads broken", f.kills[d], d, f.hang[d], f.broken[d])
	}
	t.Logf("%d downloads, %d by the ports of one that broke; those that broke: %v", f.total, f.again, f.why)
	for _, s := range f.long {
		t.Log("among the longest silences: " + f.explain(s))
	}
	for _, l := range f.looks {
		t.Log(l)
	}
	for _, w := range f.wrong {
		t.Error("wrong bytes:", w)
	}
	if f.broken["dl-firewall"] > 0 {
		t.Errorf("%d downloads were broken by a stateless element's death", f.broken["dl-firewall"])
	}
	if d := f.hang["dl-firewall"]; d > stillFor {
		t.Errorf("a download hung for %s after a stateless element's death; at most %s is promised", d, stillFor)
	}
	if d := f.hang["dl-cache"]; d > anewFor {
		t.Errorf("a download hung for %s after the death of an element that ends TCP; at most %s is promised", d, anewFor)
	}
	if f.broken["dl-cache"] > 0 && f.again == 0 {
		t.Error("no port of a download that broke was used again")
	}
	if f.kills["dl-firewall"] == 0 || f.kills["dl-cache"] == 0 || f.total < downloads {
		t.Errorf("%v kills and %d downloads are too few to tell", f.kills, f.total)
	}
}
