package nslp

import (
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/onpath/onpath/signal/gist"
)

var update = flag.Bool("update", false, "write the examples of docs/signalling.md anew")

const docs = "../../docs/signalling.md"

// exampleMessages are those of the page, each with what stands before it.
func exampleMessages() (out []*Message) {
	probe := &Message{Type: Probe, Flow: samples()[1].Flow}
	probe.Sign(key, now, Nonce{1})
	response := &Message{Type: Response, Nonce: Nonce{1}, Stack: []Entry{samples()[3].Stack[0]}}
	return []*Message{probe, response}
}

func hexBlock(b []byte) string {
	s := hex.EncodeToString(b)
	var lines []string
	for len(s) > 64 {
		lines, s = append(lines, s[:64]), s[64:]
	}
	return "```\n" + strings.Join(append(lines, s), "\n") + "\n```\n"
}

func examplesText() string {
	m := exampleMessages()
	k := gist.Toward(samples()[3].Stack[0].Address, samples()[3].Stack[0].Address.Next())
	session := gist.SessionID{1, 2, 3, 4}
	query := &gist.Message{Hops: 32, NSLPID: gist.NSLPID, Type: gist.Confirm, Source: true, MRI: &k, Session: &session, Payload: m[0].Append(nil),
		NLI: &gist.NLI{Peer: "gw1", TTL: 64, Valid: 30e9, Address: k.Source}, ResponderCookie: []byte("sixteen octets!!")}
	return "A PROBE, signed with the key of thirty-two octets `07`:\n\n" + hexBlock(m[0].Append(nil)) + "\n```\n" + m[0].Text() + "```\n\n" +
		"A RESPONSE with one entry:\n\n" + hexBlock(m[1].Append(nil)) + "\n```\n" + m[1].Text() + "```\n\n" +
		"The PROBE in GIST's Confirm, as it is in a UDP payload:\n\n" + hexBlock(query.Append(nil))
}

// TestDocs: the examples of the page are what the code writes and reads.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	head, examples, ok := strings.Cut(string(b), "### Examples\n\n")
	if !ok {
		t.Fatal("the page has no examples")
	}
	if *update {
		if err := os.WriteFile(docs, []byte(head+"### Examples\n\n"+examplesText()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	blocks := strings.Split(examples, "```")
	read := func(i int) []byte {
		if len(blocks) <= i {
			t.Fatal("an example is missing")
		}
		octets, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(blocks[i]), "\n", ""))
		if err != nil {
			t.Fatal(err)
		}
		return octets
	}
	for i, text := range []int{3, 7} {
		m, err := Parse(read(text - 2))
		if err != nil {
			t.Fatalf("example %d: %v", i, err)
		}
		if want := strings.TrimPrefix(blocks[text], "\n"); m.Text() != want {
			t.Errorf("example %d is\n%s and the page says\n%s", i, m.Text(), want)
		}
		if r := m.Verify(); m.Type == Probe && r != nil {
			t.Errorf("example %d: %v", i, r)
		}
	}
	g, err := gist.Parse(read(9))
	if err != nil || string(g.Payload) != string(read(1)) {
		t.Errorf("the datagram: %v, %+v", err, g)
	}
	if examples != examplesText() {
		t.Error("the examples are not what the code writes; go test ./signal/nslp -run Docs -update")
	}
}
