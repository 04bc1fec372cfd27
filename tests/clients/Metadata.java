import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.SQLWarning;
import java.sql.Statement;
import java.sql.Timestamp;
import java.util.Properties;

/** Does through trino-jdbc what DBeaver and Metabase do, and prints a line for each step: name, tab, result. */
public class Metadata {
    interface Step { String run() throws Exception; }

    static void step(String name, Step step) {
        String result;
        try {
            result = step.run();
        } catch (Exception error) {
            result = "FAILED " + error.getMessage();
        }
        System.out.println(name + "\t" + result.replace('\n', ' '));
    }

    /** Returns some columns of all rows: a,b;c,d. */
    static String rows(ResultSet rows, String... columns) throws SQLException {
        StringBuilder text = new StringBuilder();
        while (rows.next()) {
            if (text.length() > 0) text.append(';');
            for (int n = 0; n < columns.length; n++) text.append(n > 0 ? "," : "").append(rows.getObject(columns[n]));
        }
        return text.toString();
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("user", "ann");
        properties.setProperty("extraCredentials", "key:" + System.getenv("DISCREET_KEY"));
        properties.setProperty("sessionProperties", "epsilon:0.5");
        try (Connection connection = DriverManager.getConnection(arguments[0], properties)) {
            DatabaseMetaData data = connection.getMetaData();
            step("catalogs", () -> rows(data.getCatalogs(), "TABLE_CAT"));
            step("schemas", () -> rows(data.getSchemas("discreet", "ma%"), "TABLE_SCHEM"));
            step("types of tables", () -> rows(data.getTableTypes(), "TABLE_TYPE"));
            step("tables", () -> rows(data.getTables(null, null, "%", null), "TABLE_SCHEM", "TABLE_NAME", "REMARKS"));
            step("columns", () -> rows(data.getColumns("discreet", "main", "reads", "%"), "COLUMN_NAME", "TYPE_NAME", "DATA_TYPE"));
            step("types", () -> rows(data.getTypeInfo(), "TYPE_NAME"));
            step("keys", () -> rows(data.getPrimaryKeys("discreet", "main", "reads"), "COLUMN_NAME"));
            step("imported", () -> rows(data.getImportedKeys("discreet", "main", "reads"), "FKTABLE_NAME"));
            step("procedures", () -> rows(data.getProcedures(null, null, null), "PROCEDURE_NAME"));
            step("udts", () -> rows(data.getUDTs(null, null, null, null), "TYPE_NAME"));
            step("attributes", () -> rows(data.getAttributes(null, null, null, null), "ATTR_NAME"));
            step("super tables", () -> rows(data.getSuperTables(null, null, null), "SUPERTABLE_NAME"));
            step("pseudo columns", () -> rows(data.getPseudoColumns(null, null, null, null), "COLUMN_NAME"));
            step("valid", () -> "" + connection.isValid(5));
            step("answer", () -> {
                try (Statement statement = connection.createStatement()) {
                    statement.setQueryTimeout(60);
                    ResultSet found = statement.executeQuery(
                        "SELECT \"country\", COUNT(DISTINCT \"reader\") AS readers FROM \"discreet\".\"main\".\"reads\" GROUP BY \"country\"");
                    String shown = rows(found, "country", "readers");
                    SQLWarning warning = statement.getWarnings();
                    return shown + " " + (warning == null ? "no warning" : warning.getMessage());
                }
            });
            step("typed", () -> {
                try (Statement statement = connection.createStatement()) {
                    ResultSet found = statement.executeQuery(
                        "SELECT day, CAST(day AS TIMESTAMP) AS t, n, n / 3.0E0 AS ratio, n > 5 AS big, CAST(n AS DECIMAL(20,2)) AS d "
                        + "FROM (SELECT day, COUNT(DISTINCT reader) AS n FROM reads GROUP BY day) x ORDER BY day LIMIT 1");
                    ResultSetMetaData about = found.getMetaData();
                    StringBuilder types = new StringBuilder();
                    for (int n = 1; n <= about.getColumnCount(); n++) types.append(about.getColumnTypeName(n)).append(' ');
                    found.next();
                    return types + "" + found.getDate(1) + " " + found.getTimestamp(2) + " " + found.getBoolean(5)
                        + " " + (found.getBigDecimal(6).longValue() == found.getLong(3));
                }
            });
            String filtered = "SELECT COUNT(DISTINCT reader) AS n FROM reads WHERE country = ? AND day >= ? AND \"at\" >= ?";
            step("columns of a prepared statement", () -> {
                try (PreparedStatement statement = connection.prepareStatement(filtered)) {
                    ResultSetMetaData about = statement.getMetaData();
                    return about.getColumnName(1) + " " + about.getColumnTypeName(1) + " " + statement.getParameterMetaData().getParameterCount();
                }
            });
            step("prepared", () -> {
                try (PreparedStatement statement = connection.prepareStatement(filtered)) {
                    statement.setString(1, "IN");
                    statement.setDate(2, Date.valueOf("2026-01-10"));
                    statement.setTimestamp(3, Timestamp.valueOf("2026-01-10 10:00:00"));
                    return rows(statement.executeQuery(), "n");
                }
            });
            step("session", () -> {
                try (Statement statement = connection.createStatement()) {
                    statement.execute("SET SESSION rehearse = true");
                    String shown = rows(statement.executeQuery("SELECT COUNT(DISTINCT reader) AS n FROM reads"), "made_up");
                    statement.execute("RESET SESSION rehearse");
                    return shown;
                }
            });
            step("transaction", () -> {
                connection.setAutoCommit(false);
                try (Statement statement = connection.createStatement()) {
                    String shown = rows(statement.executeQuery("SELECT 1 AS one"), "one");
                    connection.commit();
                    return shown;
                } finally {
                    connection.setAutoCommit(true);
                }
            });
            step("refused", () -> {
                try (Statement statement = connection.createStatement()) {
                    return rows(statement.executeQuery("SELECT * FROM reads"), "reader");
                }
            });
        }
    }
}
