// Reads a body a line and prints what Jackson understands where it is told to ignore case.
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.MapperFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;

public class Decode {
  public static class Options {
    public Boolean include_usage;
  }

  public static class Body {
    public String model;
    public Integer max_tokens;
    public Integer max_completion_tokens;
    public Integer n;
    public Boolean stream;
    public Options stream_options;
  }

  public static void main(String[] arguments) throws Exception {
    ObjectMapper mapper =
        JsonMapper.builder()
            .enable(MapperFeature.ACCEPT_CASE_INSENSITIVE_PROPERTIES)
            .disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES)
            .build();
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      Map<String, Object> answer = new LinkedHashMap<>();
      try {
        Body body = mapper.readValue(line, Body.class);
        answer.put("model", body.model);
        answer.put("ceiling", body.max_completion_tokens != null ? body.max_completion_tokens : body.max_tokens);
        answer.put("n", body.n != null ? body.n : 1);
        answer.put("stream", body.stream != null && body.stream);
        answer.put("usage", body.stream_options != null && Boolean.TRUE.equals(body.stream_options.include_usage));
      } catch (Exception error) {
        answer.clear();
        answer.put("error", error.toString());
      }
      System.out.println(mapper.writeValueAsString(answer));
    }
  }
}
