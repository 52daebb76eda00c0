package router

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath/api/wire"
)

// Param is a query parameter of a stream, for its description.
type Param struct{ name, kind, doc string }

// Text is a parameter that is text.
func Text(name, doc string) Param { return Param{name, huma.TypeString, doc} }

// Integer is a parameter that is a whole number.
func Integer(name, doc string) Param { return Param{name, huma.TypeInteger, doc} }

// Boolean is a parameter that is true or false.
func Boolean(name, doc string) Param { return Param{name, huma.TypeBoolean, doc} }

// Stream adds what answers with a stream or an upgrade: a plain handler, described by hand.
func (rt *Router) Stream(path, id, summary, mediaType string, do func(http.ResponseWriter, *http.Request) error, params ...Param) {
	rt.mux.HandleFunc("GET "+path, rt.guarded(id, do))
	op := Operation(http.MethodGet, path, id, summary)
	op.Parameters = pathParams(path)
	for _, p := range params {
		op.Parameters = append(op.Parameters, &huma.Param{Name: p.name, In: "query", Description: p.doc,
			Schema: &huma.Schema{Type: p.kind}})
	}
	op.Responses = map[string]*huma.Response{"200": {Description: summary, Content: map[string]*huma.MediaType{mediaType: {}}}}
	rt.doc.OpenAPI().AddOperation(&op)
}

// StreamWriter sends the header of a stream with its first bytes, and what went
// wrong afterwards in a trailer.
type StreamWriter struct {
	w         http.ResponseWriter
	mediaType string
	begun     bool
}

// NewStream is a stream of a media type.
func NewStream(w http.ResponseWriter, mediaType string) *StreamWriter {
	return &StreamWriter{w: w, mediaType: mediaType}
}

// Begun reports whether the header has been sent: no status can be answered any more.
func (l *StreamWriter) Begun() bool { return l.begun }

// Send sends bytes, and the header before them.
func (l *StreamWriter) Send(b []byte) {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", l.mediaType)
		l.w.Header().Set("Trailer", wire.Trailer)
		l.w.WriteHeader(http.StatusOK)
	}
	_, _ = l.w.Write(b) // a caller who is gone ends the request's context
	_ = http.NewResponseController(l.w).Flush()
}

// End sends the trailer; err says why the stream is not complete.
func (l *StreamWriter) End(err error) {
	if !l.begun {
		l.Send(nil)
	}
	if err != nil && err != io.EOF { // one that wraps it is no end
		b, _ := json.Marshal(ErrorsOf(err)[0]) // strings only
		l.w.Header().Set(wire.Trailer, string(b))
	}
}
