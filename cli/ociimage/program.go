package ociimage

import (
	"archive/tar"
	"bytes"
	"os"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Program is where the program lies in the images that WriteProgram writes.
const Program = "/program"

// WriteProgram writes an image of one static program as an OCI layout in the folder dir.
func WriteProgram(dir, program string) error {
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, folder := range []string{"etc", "tmp"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder, Mode: 0o755}); err != nil {
			return err
		}
	}
	file := tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(Program, "/"), Mode: 0o755, Size: int64(len(content))}
	if err := w.WriteHeader(&file); err != nil {
		return err
	}
	if _, err := w.Write(content); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, static.NewLayer(b.Bytes(), types.OCIUncompressedLayer))
	if err != nil {
		return err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, c); err != nil {
		return err
	}
	return writeLayout(img, "program", dir)
}
