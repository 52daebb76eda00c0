package attack_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/onpath/onpath/api/auth"
)

// endless are paths whose answers may have no end, which schemathesis would take for a fault;
// TestAnything asks there.
const endless = "/(watch|notifications|traffic|flows|logs|exec|capture|session)$"

// TestSchemathesis: a program of others' reads the API's document and asks whatever comes to
// its mind, in every role; the server has no fault, and goes on.
func TestSchemathesis(t *testing.T) {
	if os.Getenv("ONPATH_SOAK") == "" {
		t.Skip("ONPATH_SOAK is not set; it takes minutes")
	}
	bin, err := exec.LookPath("schemathesis")
	if err != nil {
		t.Skip("schemathesis is not installed: pip install schemathesis")
	}
	s := newServer(t)
	operator := &somebody{http: s.operator.HTTP(), base: s.operator.URL()}
	code, doc := operator.askAll(t.Context(), "/openapi.json")
	document := filepath.Join(t.TempDir(), "openapi.json")
	if err := os.WriteFile(document, doc, 0o644); err != nil || code != 200 {
		t.Fatal(code, err)
	}
	hooks, err := filepath.Abs("testdata/schemathesis")
	if err != nil {
		t.Fatal(err)
	}
	viewer, _ := s.bearer(auth.TokenRequest{Role: auth.RoleViewer, Name: "board", Tenant: "shop"})
	for _, c := range []struct { // the operator last: it deletes the others
		role string
		args []string
	}{
		{"stranger", nil},
		{"viewer", []string{"--header", "Authorization: Bearer " + viewer.bearer}},
		{"user", s.certificateOf(auth.TokenRequest{Role: auth.RoleUser, Name: "mallory", Tenant: "evil"})},
		{"node", s.certificateOf(auth.TokenRequest{Role: auth.RoleNode, Name: "gw9", Cloudlet: "fra1"})},
		{"operator", s.certificateOf(auth.TokenRequest{Role: auth.RoleOperator, Name: "root"})},
	} {
		t.Run(c.role, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
			defer cancel()
			args := append([]string{"--no-color", "run", document, "--url", "https://" + s.address, "--tls-verify", "false", "--checks", "no_fault",
				"--phases", "examples,coverage,fuzzing", "--max-examples", "10", "--workers", "1", "--request-timeout", "5",
				"--exclude-path-regex", endless,
				"--suppress-health-check", "all", "--continue-on-failure"}, c.args...)
			cmd := exec.CommandContext(ctx, bin, args...)
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "SCHEMATHESIS_HOOKS=answers", "PYTHONPATH="+hooks, "PYTHONDONTWRITEBYTECODE=1")
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte("Test cases:")) {
				t.Errorf("%v\n%s", err, out[max(0, len(out)-8000):])
			} else {
				t.Logf("%s", out[bytes.LastIndex(out, []byte("Test cases:")):])
			}
		})
	}
	if code, text := operator.ask(t.Context(), "GET", "/v1/chains", ""); code != 200 {
		t.Errorf("afterwards: %d %s", code, text)
	}
}

// certificateOf are the arguments by which schemathesis shows one.
func (s *server) certificateOf(r auth.TokenRequest) []string {
	dir := s.t.TempDir()
	s.join(r, dir)
	return []string{"--request-cert", filepath.Join(dir, "cert.pem"), "--request-cert-key", filepath.Join(dir, "key.pem")}
}
