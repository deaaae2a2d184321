// Reads a body a line and prints what encoding/json understands: it ignores the case of names, and takes the last of several.
package main

import (
	"bufio"
	"encoding/json"
	"os"
)

type body struct {
	Model               string `json:"model"`
	MaxTokens           *int   `json:"max_tokens"`
	MaxCompletionTokens *int   `json:"max_completion_tokens"`
	N                   *int   `json:"n"`
	Stream              bool   `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

func main() {
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var read body
		if err := json.Unmarshal(line, &read); err != nil {
			answers.Encode(map[string]any{"error": err.Error()})
			continue
		}
		ceiling, n := read.MaxCompletionTokens, 1
		if ceiling == nil {
			ceiling = read.MaxTokens
		}
		if read.N != nil {
			n = *read.N
		}
		usage := read.StreamOptions != nil && read.StreamOptions.IncludeUsage
		answers.Encode(map[string]any{"model": read.Model, "ceiling": ceiling, "n": n, "stream": read.Stream, "usage": usage})
	}
}
